"""`kofn train vae`: its options, and what they may be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kofn.commands.files import InputError
from kofn.commands.terminal import at_least, check_seed, chosen
from kofn.commands.train.study import Force, Out, Resume, Seed, Seeds, Study, conduct

if TYPE_CHECKING:
    from kofn.commands.train.vae.training import Settings


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
    seeds: Seeds = 1,
    seed: Seed = 0,
    out: Out = Path("kofn-vae"),
    resume: Resume = False,
    force: Force = False,
) -> None:
    """Train a discrete autoencoder by several gradient estimators.

    The data are scikit-learn's digits. Writes checkpoint.pt during training, then vae.json,
    curves.png and digits.png.
    """
    # These imports take seconds; made here, an interrupt during them is handled as usual.
    from kofn.commands.train.vae.methods import METHODS, USUAL
    from kofn.commands.train.vae.training import Settings

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
    conduct(_study(settings), out, resume=resume, force=force)


def _study(settings: Settings) -> Study:
    from kofn.commands.train.vae import report
    from kofn.commands.train.vae.model import digits
    from kofn.commands.train.vae.training import Run

    data = digits(settings.seed)
    return Study(
        settings=settings,
        keys=settings.runs(),
        parts=settings.epochs,
        begin=lambda key: Run(settings, data, *key),
        names=report.FILES,
        contents=lambda results, seconds: (
            report.as_json(settings, results, seconds),
            report.curves(settings, results),
            report.generated(settings, results, data),
        ),
        table=lambda results: report.as_rich(settings, results),
    )


def _check(settings: Settings) -> None:
    from kofn.commands.train.vae.methods import METHODS
    from kofn.commands.train.vae.training import MOST_CHOICES

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
