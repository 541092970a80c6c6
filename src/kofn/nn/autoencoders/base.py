"""The parameters of a sparse autoencoder, its decoder, its schedule and its reports."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kofn.arrays import without_onnx
from kofn.arrays.checks import check_integer
from kofn.links import Link
from kofn.nn.autoencoders.code import sizes_of
from kofn.nn.autoencoders.learned_k import LatentsPerToken
from kofn.nn.autoencoders.settings import USUAL, Settings
from kofn.nn.autoencoders.state import Firing, RunningCut, cut_below
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
    """A `TopKSAE` without its way to choose."""

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

    @torch.no_grad()
    def calibrate(self, x: Tensor, mask: Tensor | None = None, *, batch_size: int = 4096) -> None:
        """Set the threshold of selection="batch" exactly: k latents per input of x on average.

        Args:
            x: [..., d_in], all inputs at once; k times their number of scores is kept in memory.
            mask: as for `forward`. batch_size: how many inputs are encoded at a time.

        For k = d_sae the threshold is 0. Inputs with NaN are left out.

        Raises:
            ValueError: the selection is not "batch", no input is left, or there are too few of
            them for one latent.
        """
        if self.running is None:
            raise ValueError(f"calibrate is for selection='batch'; got {self.selection!r}")
        without_onnx.refuse("nn.TopKSAE.calibrate")
        check_integer("batch_size", batch_size, "an integer ≥ 1", 1)
        inputs = tokens_of(x, self.d_in)[slice(None) if mask is None else flat_mask(mask, x)]
        if x.numel() and not len(inputs):
            raise ValueError("mask must be True for at least one input; got False for all")
        inputs = inputs[~inputs.isnan().any(-1)]
        wanted = check_wanted(float(self.current_k()), len(inputs), x)
        parts = (
            sizes_of(self._scores(part, None)[0], self.signed)
            for part in torch.split(inputs, batch_size)
        )
        everything = wanted == len(inputs) * self.d_sae
        cut = torch.zeros_like(self.running.cut) if everything else cut_below(parts, wanted)
        self.running.fix(cut)

    def _scores(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the scores, the same as rows [T, d_sae], and the mask [T]."""
        inputs = tokens_of(x, self.d_in)
        live = None if mask is None else flat_mask(mask, x)
        scores = (inputs - self.b_dec) @ self.W_enc + self.b_enc
        return scores.view(*x.shape[:-1], self.d_sae), scores, live


def check_wanted(k: float, inputs: int, x: Tensor) -> int:
    """Return how many scores are to fire for all inputs."""
    wanted = round(k * inputs)
    if not inputs:
        kind = "inputs without NaN" if x.numel() else "inputs"
        raise ValueError(f"x must have {kind} to choose from; got shape {tuple(x.shape)}")
    if not wanted:
        raise ValueError(f"x must have enough inputs for one latent; got {inputs} for k = {k:g}")
    return wanted


def unit_rows(weight: Tensor) -> Tensor:
    """Return the rows divided by their norms; a row of zeros stays zero."""
    return functional.normalize(weight, dim=-1, eps=TINY)


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
