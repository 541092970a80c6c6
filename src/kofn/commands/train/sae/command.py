"""`kofn train sae`: its options, and what they may be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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


def sae(
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Autoencoder; repeat the option for several. All by default: kofn-token, "
            "kofn-token-all, kofn-batch, kofn-batch-annealed, kofn-batch-learned, topk, topk-auxk, "
            "batchtopk, batchtopk-auxk, jumprelu, gated, kofn-batch-bf16, batchtopk-bf16.",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="features (known directions) or digits (activations of a network); repeat the "
            "option for both. Both by default.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of training steps of a run; by default 1,000.")
    ] = None,
    seeds: Repeats = None,
    seed: Seed = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed and 100 steps: less than a minute.")
    ] = False,
    out: Out = Path("kofn-sae"),
    resume: Resume = False,
    force: Force = False,
) -> None:
    """Train sparse autoencoders with equally many latents.

    By kofn.nn.TopKSAE and by the usual methods. Writes checkpoint.pt during training, then
    sae.json, recovery.png and features.png.
    """
    # These imports take seconds; made here, an interrupt during them is handled as usual.
    from kofn.commands.train.sae import report
    from kofn.commands.train.sae.methods import METHODS
    from kofn.commands.train.sae.tasks import TASKS
    from kofn.commands.train.sae.training import Run, Settings

    methods = [each.name for each in chosen("method", method, METHODS)]
    tasks = chosen("task", task, {name: name for name in TASKS})
    steps, seeds = lengths_of(quick, 100, steps, 1000, seeds)
    settings = Settings(
        tasks=tuple(dict.fromkeys(tasks)),
        methods=tuple(dict.fromkeys(methods)),
        steps=steps,
        seeds=seeds,
        seed=seed,
    )
    check_seed(settings.seed)
    conduct(comparison(settings, Run, report), out, resume=resume, force=force)
