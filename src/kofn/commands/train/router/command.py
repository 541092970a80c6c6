"""`kofn train router`: its options, and what they may be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kofn.commands.files import InputError
from kofn.commands.terminal import check_seed, chosen
from kofn.commands.train.study import (
    Force,
    Out,
    Repeats,
    Resume,
    Seed,
    comparison,
    conduct,
    lengths_of,
)

if TYPE_CHECKING:
    from kofn.commands.train.router.training import Settings


def router(
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Router; repeat the option for several. All by default: kofn, kofn-balanced, "
            "kofn-unnormalized, kofn-topk, kofn-topk-normalized, softmax-topk, topk-softmax, "
            "sigmoid-bias, relu-l1.",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="known (a regression whose experts are given), regression (experts are learned) "
            "or text; repeat the option for several. All by default.",
        ),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option("-k", help="Number of experts of a token; repeat for several. 1 and 2."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of training steps of a run; by default 400.")
    ] = None,
    seeds: Repeats = None,
    seed: Seed = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed and 50 steps: less than a minute.")
    ] = False,
    out: Out = Path("kofn-router"),
    resume: Resume = False,
    force: Force = False,
) -> None:
    """Train mixtures of experts with several routers.

    Those of kofn.nn.TopKRouter, and the usual ones. Writes checkpoint.pt during training, then
    router.json and curves.png.
    """
    # These imports take seconds; made here, an interrupt during them is handled as usual.
    from kofn.commands.train.router import report
    from kofn.commands.train.router.routers import METHODS
    from kofn.commands.train.router.tasks import TASKS
    from kofn.commands.train.router.training import PART, Run, Settings

    methods = [each.name for each in chosen("method", method, METHODS)]
    tasks = chosen("task", task, {name: name for name in TASKS})
    steps, seeds = lengths_of(quick, PART, steps, 400, seeds)
    settings = Settings(
        tasks=tuple(dict.fromkeys(tasks)),
        methods=tuple(dict.fromkeys(methods)),
        ks=tuple(dict.fromkeys(k or (1, 2))),
        steps=steps,
        seeds=seeds,
        seed=seed,
    )
    _check(settings)
    conduct(comparison(settings, Run, report), out, resume=resume, force=force)


def _check(settings: Settings) -> None:
    from kofn.commands.train.router.tasks import Regression

    check_seed(settings.seed)
    for k in settings.ks:
        if not 1 <= k < Regression.GROUPS:
            raise InputError(f"-k must be in 1..{Regression.GROUPS - 1}; got {k}")
    if not settings.runs():
        raise InputError(f"--method {settings.methods[0]} needs -k of at least 2")
