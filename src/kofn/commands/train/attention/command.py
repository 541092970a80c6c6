"""`kofn train attention`: its options, and what they may be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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

SHORTEST = 64


def attention(
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Kind of attention; repeat the option for several. All by default: softmax, "
            "entmax, entmax-learned, entmax-scaled, soft-topk, soft-topk-learned.",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="copy, reverse, 2-back or recall; repeat the option for several. All by default.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of training steps of a run; by default 300.")
    ] = None,
    longest: Annotated[
        int | None,
        typer.Option(help="Longest sequence of the test, by default 4,096; training ends at 64."),
    ] = None,
    seeds: Repeats = None,
    seed: Seed = 0,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="One seed, 20 steps, tests up to 128: less than a minute."),
    ] = False,
    out: Out = Path("kofn-attention"),
    resume: Resume = False,
    force: Force = False,
) -> None:
    """Train small transformers; test them at longer sequences.

    With softmax, entmax and soft top-k as attention. Writes checkpoint.pt during training, then
    attention.json, curves.png and maps.png.
    """
    # These imports take seconds; made here, an interrupt during them is handled as usual.
    from kofn.commands.train.attention import report
    from kofn.commands.train.attention.model import METHODS
    from kofn.commands.train.attention.tasks import TASKS
    from kofn.commands.train.attention.training import PART, Run, Settings

    methods = [each.name for each in chosen("method", method, METHODS)]
    tasks = chosen("task", task, {name: name for name in TASKS})
    longest = (128 if quick else 4096) if longest is None else longest
    steps, seeds = lengths_of(quick, min(PART, 20), steps, 300, seeds)
    settings = Settings(
        tasks=tuple(dict.fromkeys(tasks)),
        methods=tuple(dict.fromkeys(methods)),
        steps=steps,
        lengths=_lengths(longest),
        seeds=seeds,
        seed=seed,
    )
    check_seed(settings.seed)
    conduct(comparison(settings, Run, report), out, resume=resume, force=force)


def _lengths(longest: int) -> tuple[int, ...]:
    """Return 64, 128, … up to the longest."""
    if longest < SHORTEST:
        raise InputError(f"--longest must be at least {SHORTEST}; got {longest}")
    lengths = [SHORTEST]
    while 2 * lengths[-1] <= longest:
        lengths.append(2 * lengths[-1])
    return tuple(lengths)
