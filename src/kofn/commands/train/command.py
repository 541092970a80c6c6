"""`kofn train`: studies that train small models by several methods."""

from __future__ import annotations

import typer

from kofn.commands.examples import EXAMPLES
from kofn.commands.train.attention.command import attention
from kofn.commands.train.prune.command import prune
from kofn.commands.train.router.command import router
from kofn.commands.train.sae.command import sae
from kofn.commands.train.vae.command import vae

train = typer.Typer(
    help="Train small models by several methods, and compare them.",
    epilog=EXAMPLES["train"],
    no_args_is_help=True,
    rich_markup_mode=None,
)


@train.callback()
def _group() -> None:
    """Train small models by several methods, and compare them."""


for _study in (vae, router, attention, sae, prune):
    train.command(epilog=EXAMPLES[_study.__name__])(_study)
