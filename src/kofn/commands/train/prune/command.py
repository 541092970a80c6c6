"""`kofn train prune`: its options, and what they may be."""

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
    from kofn.commands.train.prune.training import Settings

REMOVED = ("0.8", "0.9", "0.95", "0.98", "0.99", "2:4")


def prune(
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Way to prune; repeat the option for several. All by default: kofn, "
            "kofn-subsets (2:4), gradual, magnitude, spartan, straight-through, gumbel (2:4).",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="mlp or cnn; both by default."),
    ] = None,
    removed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE",
            help="Share of the weights to remove, or 2:4; repeat the option for several. "
            "By default 0.8, 0.9, 0.95, 0.98, 0.99 and 2:4.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of training steps of a run; by default 600.")
    ] = None,
    seeds: Repeats = None,
    seed: Seed = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed and 50 steps: less than a minute.")
    ] = False,
    out: Out = Path("kofn-prune"),
    resume: Resume = False,
    force: Force = False,
) -> None:
    """Train small networks of which few weights are left.

    By kofn.nn.prune, by magnitude and by other ways. Writes checkpoint.pt during training, then
    prune.json and curves.png.
    """
    # These imports take seconds; made here, an interrupt during them is handled as usual.
    from kofn.commands.train.prune import report
    from kofn.commands.train.prune.methods import METHODS
    from kofn.commands.train.prune.tasks import MODELS
    from kofn.commands.train.prune.training import PART, Run, Settings

    methods = [each.name for each in chosen("method", method, METHODS)]
    models = chosen("model", model, {name: name for name in MODELS})
    steps, seeds = lengths_of(quick, PART, steps, 600, seeds)
    settings = Settings(
        models=tuple(dict.fromkeys(models)),
        methods=tuple(dict.fromkeys(methods)),
        removed=tuple(dict.fromkeys(map(_share, removed or REMOVED))),
        steps=steps,
        seeds=seeds,
        seed=seed,
    )
    _check(settings)
    conduct(comparison(settings, Run, report), out, resume=resume, force=force)


def _share(removed: str) -> str:
    """Return a share in its shortest form, or "2:4"."""
    if removed == "2:4":
        return removed
    try:
        share = float(removed)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise InputError(f"--removed must be a share between 0 and 1, or 2:4; got {removed!r}")
    return f"{share:g}"


def _check(settings: Settings) -> None:
    from kofn.commands.train.prune.methods import METHODS

    check_seed(settings.seed)
    for name in settings.methods:
        method = METHODS[name]
        if not any(method.groups if each == "2:4" else method.free for each in settings.removed):
            other = "2:4" if method.groups else "a share"
            raise InputError(f"--method {name} needs --removed {other}")
