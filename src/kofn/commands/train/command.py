"""`kofn train vae`: options, progress bar and results."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kofn.commands import files as _files
from kofn.commands.files import InputError
from kofn.commands.terminal import at_least, bar, check_seed, chosen, prepare_kernels, printed

if TYPE_CHECKING:
    from kofn.commands.train.training import Checkpoint, Run, Settings

train = typer.Typer(
    help="Train a model with discrete latents.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@train.callback()
def _group() -> None:
    """Train a model with discrete latents."""


@train.command()
def vae(
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Training method; repeat the option for several. By default: gumbel-softmax, "
            "straight-through, reinmax, leave-one-out, softmax, exact, k-hot, k-hot-exact. Also "
            "available: st-gumbel, gumbel-rao, rebar, k-hot-score.",
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="Number of passes over the 1,347 training images.")
    ] = 100,
    factors: Annotated[int, typer.Option(help="Number of categorical latents per image.")] = 3,
    categories: Annotated[int, typer.Option(help="Number of categories per factor.")] = 8,
    items: Annotated[int, typer.Option(help="Number of items in a k-hot latent.")] = 12,
    k: Annotated[int, typer.Option("-k", help="Number of items chosen in a k-hot latent.")] = 4,
    samples: Annotated[
        int, typer.Option(help="Number of samples per image and step, for methods that sample.")
    ] = 4,
    seeds: Annotated[int, typer.Option(help="Number of runs of each method.")] = 1,
    seed: Annotated[
        int, typer.Option(help="Random seed of the first run; later runs use the next integers.")
    ] = 0,
    out: Annotated[Path, typer.Option(help="Directory to write the results to.")] = Path(
        "kofn-vae"
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run saved in --out.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite earlier results.")] = False,
) -> None:
    """Train a discrete autoencoder by several gradient estimators.

    The data are scikit-learn's digits. Writes checkpoint.pt during training, then vae.json,
    curves.png and digits.png.
    """
    # These imports take seconds; made here, an interrupt during them is handled as usual.
    from kofn.commands.train.methods import METHODS, USUAL
    from kofn.commands.train.training import Settings

    began = time.monotonic()
    taken = chosen("method", method, METHODS) if method else [METHODS[m] for m in USUAL]
    settings = Settings(
        methods=tuple(dict.fromkeys(each.name for each in taken)),
        epochs=epochs,
        factors=factors,
        n=categories,
        items=items,
        k=k,
        samples=samples,
        seeds=seeds,
        seed=seed,
    )
    _check(settings)
    _run(settings, out, resume, force, began)


def _run(settings: Settings, out: Path, resume: bool, force: bool, began: float) -> None:
    from kofn.commands.train import report
    from kofn.commands.train.model import digits
    from kofn.commands.train.training import CHECKPOINT, Checkpoint

    if resume and force:
        raise InputError(
            "--resume continues the saved run, --force overwrites it; give only one of them"
        )
    _files.check_out(out, (CHECKPOINT, *report.FILES), force or resume)
    checkpoint = Checkpoint(out, settings)
    if resume:
        checkpoint.read()
    data = digits(settings.seed)
    prepare_kernels()
    try:
        results = _trained(settings, data, checkpoint)
        contents = (
            report.as_json(settings, results, time.monotonic() - began),
            report.curves(settings, results),
            report.generated(settings, results, data),
        )
        _files.write(out, dict(zip(report.FILES, contents, strict=True)), force=True)
    except KeyboardInterrupt as stop:
        stop.args = (_left(checkpoint),)
        raise
    files = [out / name for name in (*report.FILES, CHECKPOINT)]
    printed(report.as_rich(settings, results), files=files)


def _check(settings: Settings) -> None:
    from kofn.commands.train.methods import METHODS
    from kofn.commands.train.training import MOST_CHOICES

    lowest = {"epochs": 1, "factors": 1, "items": 2, "samples": 1, "seeds": 1}
    for name, low in lowest.items():
        at_least(name, getattr(settings, name), low)
    at_least("categories", settings.n, 2)
    check_seed(settings.seed)
    if not 1 <= settings.k < settings.items:
        raise InputError(f"-k must be in 1..{settings.items - 1}, below --items; got {settings.k}")
    for name in settings.methods:
        fewest = METHODS[name].fewest_samples
        if settings.samples < fewest:
            raise InputError(f"--method {name} needs --samples of at least {fewest}")
        size = settings.latent(name).log_size
        if METHODS[name].enumerates and size > math.log(MOST_CHOICES) + 1e-9:
            raise InputError(
                f"--method {name} sums over every choice, at most {MOST_CHOICES:,}; there are "
                f"{math.exp(min(size, 700)):.3g}; choose another --method, or fewer categories"
            )


def _left(checkpoint: Checkpoint) -> str:
    """Save the last epoch after an interrupt, and say how to continue."""
    checkpoint.write()
    resumable = checkpoint.written > -math.inf
    return f"--resume continues from {checkpoint.path}" if resumable else "nothing was written"


def _trained(settings: Settings, data: Any, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Train all runs, with a progress bar on standard error."""
    from threadpoolctl import threadpool_limits

    from kofn.commands.train.training import train as work

    order = settings.runs()
    # Small matrices are faster on one thread, and much faster if other processes share the cores.
    with threadpool_limits(limits=1), bar(len(order) * settings.epochs, 16) as update:

        def tell(name: str, seed: int, run: Run) -> None:
            done = order.index((name, seed)) * settings.epochs + len(run.history)
            bound = f" bound {run.history[-1].held_out:.1f}" if run.history else ""
            update(completed=done, description=f"{name}, seed {seed}:{bound}")

        return work(settings, data, checkpoint, tell)
