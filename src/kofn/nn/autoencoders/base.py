"""The parameters of a sparse autoencoder, its decoder, its schedule and its reports."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kofn.arrays.checks import check_integer
from kofn.links import Link
from kofn.nn.autoencoders.code import Coding
from kofn.nn.autoencoders.learned_k import LatentsPerToken
from kofn.nn.autoencoders.settings import USUAL, Settings
from kofn.nn.autoencoders.state import Firing, RunningCut
from kofn.nn.scheduled import temperature_at
from kofn.nn.tensors import check_boolean, check_tensors

TINY = 1e-12  # the least norm of a decoder row that is divided by


class Reporting(nn.Module):
    """The reports of an autoencoder on itself."""

    d_in: int
    d_sae: int
    k: LatentsPerToken
    firing: Firing

    def silent_latents(self) -> Tensor:
        """Return which latents did not fire in the last `silent_after` training calls."""
        return self.firing.silent()

    def statistics(self, reset: bool = True) -> dict[str, Tensor]:
        """Return how often latents fired in training since the last `reset`, in this process.

        Returns:
            tokens: how many inputs; l0: latents per input; frequency [d_sae]: each latent's share
            of inputs; dead_latents: how many never fired; silent_calls [d_sae]: training calls
            since each fired, and `silent_after` more for one that never did.
        """
        return self.firing.statistics(reset)

    def extra_repr(self) -> str:
        options: dict[str, Any] = {"k": self.k.given} | {
            name: getattr(self, name) for name in ("selection", "gradient", "decoder_norm")
        }
        if self.k.log is not None:
            options["learned_k"] = True
        options |= {
            name: getattr(self, name) for name in USUAL if getattr(self, name) != USUAL[name]
        }
        named = ", ".join(f"{name}={value!r}" for name, value in options.items())
        return f"{self.d_in} to {self.d_sae}, {named}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


class Autoencoder(Reporting):
    """The parameters of a `TopKSAE`, and its encoder and decoder."""

    W_enc: nn.Parameter
    b_enc: nn.Parameter
    W_dec: nn.Parameter
    b_dec: nn.Parameter
    steps: Tensor
    selection: str
    gradient: str
    silent_after: int
    decoder_norm: str
    signed: bool = False  # of one that a kofn without it has pickled
    link: str | Link
    temperature: Any

    def __init__(
        self,
        d_in: int,
        d_sae: int,
        k: Any,
        settings: Settings,
        learned_k: bool,
        device: Any,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.d_in = check_integer("d_in", d_in, "an integer ≥ 1", 1)
        self.d_sae = check_integer("d_sae", d_sae, "an integer ≥ 1", 1)
        for name, value in vars(settings).items():
            setattr(self, name, value)
        jointly = settings.selection == "batch"
        self.k = LatentsPerToken(k, self.d_sae, jointly, learned_k, device)
        sizes = (self.d_in, self.d_sae)
        shapes = {"W_enc": sizes, "b_enc": sizes[1:], "W_dec": sizes[::-1], "b_dec": sizes[:1]}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.firing = Firing(self.d_sae, settings.silent_after, device)
        self.running = RunningCut(device) if jointly else None
        if callable(self.k.given) or callable(settings.temperature):
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=device))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw unit decoder rows, the encoder as their transpose; zero biases; reset the rest."""
        nn.init.normal_(self.W_dec)
        self.W_dec.copy_(unit_rows(self.W_dec))
        self.W_enc.copy_(self.W_dec.T)
        nn.init.zeros_(self.b_enc)
        nn.init.zeros_(self.b_dec)
        if "steps" in self._buffers:
            self.steps.zero_()
        for part in self.children():
            part.reset_parameters()  # type: ignore[operator]

    def decode(self, code: Tensor) -> Tensor:
        """Return the reconstructions [..., d_in] of codes [..., d_sae]."""
        check_width("code", code, "d_sae", self.d_sae)
        return code @ self.decoder() + self.b_dec

    def decoder(self) -> Tensor:
        """Return the directions of the latents [d_sae, d_in], with norm 1 or as they are."""
        return unit_rows(self.W_dec) if self.decoder_norm == "unit" else self.W_dec

    def current_k(self) -> Any:
        """Return k of this step: a number, or a tensor if learned or from such a schedule."""
        return self.k(self._buffers.get("steps"))

    def current_temperature(self) -> Any:
        """Return the temperature of this step, in standard deviations of the scores."""
        now = self.temperature
        return temperature_at(now, self.steps) if callable(now) else now

    @torch.no_grad()
    def step(self) -> None:
        """Advance the schedules and normalise decoder rows; call it once per optimizer step."""
        if "steps" in self._buffers:
            self.steps += 1
        if self.decoder_norm == "unit":
            self.W_dec.copy_(unit_rows(self.W_dec))

    def _scores(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the scores, the same as rows [T, d_sae], and the mask [T]."""
        inputs = tokens_of(x, self.d_in)
        live = None if mask is None else flat_mask(mask, x)
        scores = (inputs - self.b_dec) @ self.W_enc + self.b_enc
        return scores.view(*x.shape[:-1], self.d_sae), scores, live

    def _coding(self) -> Coding:
        soft = self.training and torch.is_grad_enabled()
        return Coding(
            self.current_k(),
            self.selection == "batch",
            self.gradient if soft else "chosen",
            self.firing.silent().to(self.W_enc.device),
            self.link,
            self.current_temperature(),
            self.signed,
        )


def unit_rows(weight: Tensor) -> Tensor:
    """Return the rows divided by their norms; a row of zeros stays zero."""
    return functional.normalize(weight, dim=-1, eps=TINY)


def live_tokens_of(x: Tensor, mask: Tensor | None, d_in: int) -> Tensor:
    """Return the inputs [T, d_in] that are no padding."""
    inputs = tokens_of(x, d_in)[slice(None) if mask is None else flat_mask(mask, x)]
    if x.numel() and not len(inputs):
        raise ValueError("mask must be True for at least one input; got False for all")
    return inputs


def tokens_of(x: Tensor, d_in: int) -> Tensor:
    check_width("x", x, "d_in", d_in)
    return x.reshape(-1, d_in)


def check_width(name: str, x: Tensor, width: str, wanted: int) -> None:
    given: dict[str, Any] = {name: x}
    check_tensors(**given)
    if tuple(x.shape[-1:]) != (wanted,):
        shape = tuple(x.shape)
        raise ValueError(f"{name} must have shape [..., {width}] (here {wanted}); got {shape}")


def flat_mask(mask: Tensor, x: Tensor) -> Tensor:
    shape = tuple(x.shape[:-1])
    check_boolean(mask, "False for padding")
    if tuple(mask.shape) != shape:
        raise ValueError(
            f"mask must have the shape of x without the last dimension, {shape}; "
            f"got {tuple(mask.shape)}"
        )
    return mask.flatten()
