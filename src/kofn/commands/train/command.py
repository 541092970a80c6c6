"""`kofn train`: studies that train small models by several methods."""

from __future__ import annotations

import typer

from kofn.commands.train.attention.command import attention
from kofn.commands.train.prune.command import prune
from kofn.commands.train.router.command import router
from kofn.commands.train.sae.command import sae
from kofn.commands.train.vae.command import vae

train = typer.Typer(
    help="Train small models by several methods, and compare them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@train.callback()
def _group() -> None:
    """Train small models by several methods, and compare them."""


train.command()(vae)
train.command()(router)
train.command()(attention)
train.command()(sae)
train.command()(prune)
