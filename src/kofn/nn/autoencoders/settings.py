"""The settings of a sparse autoencoder, checked."""

from __future__ import annotations

from typing import Any

from kofn.arrays.checks import check_choice, check_flag, check_integer
from kofn.links import table
from kofn.nn.scheduled import check_schedule

USUAL = {"link": "logistic", "temperature": 0.3, "silent_after": 2, "signed": False}


class Settings:
    """The settings of a `TopKSAE` besides its sizes and k; its docstring describes them."""

    def __init__(
        self,
        selection: str,
        gradient: str,
        silent_after: int,
        link: Any,
        temperature: Any,
        decoder_norm: str,
        signed: bool,
    ) -> None:
        check_choice("selection", selection, ("token", "batch"))
        check_choice("gradient", gradient, ("silent", "all", "chosen"))
        check_choice("decoder_norm", decoder_norm, ("unit", "free"))
        self.selection, self.gradient, self.decoder_norm = selection, gradient, decoder_norm
        self.signed = check_flag("signed", signed)
        self.silent_after = check_integer("silent_after", silent_after, "an integer ≥ 1", 1)
        resolved = table.resolve(link)
        self.link = link if link is resolved else resolved.name
        self.temperature = check_schedule(temperature)
