"""What an autoencoder takes from a sample of inputs: where it starts, and its threshold."""

from __future__ import annotations

import torch
from torch import Tensor

from kofn.arrays import without_onnx
from kofn.arrays.checks import check_integer
from kofn.nn.autoencoders.base import Autoencoder, live_tokens_of
from kofn.nn.autoencoders.code import code_of, sizes_of
from kofn.nn.autoencoders.state import cut_below


class Sampled(Autoencoder):
    """A `TopKSAE` without its forward pass."""

    @torch.no_grad()
    def initialize(self, x: Tensor, mask: Tensor | None = None, *, batch_size: int = 4096) -> None:
        """Start from the mean of x: call it before training, for inputs whose mean is not 0.

        b_dec becomes the mean of the inputs, and W_enc and b_enc are multiplied by one number, so
        that the reconstructions of x have the least squared error that this can give.

        Args:
            x: [..., d_in], a sample of the inputs, of some thousands. mask: as for `forward`.
            batch_size: how many inputs are encoded at a time.

        Inputs with NaN or infinity are left out. In several processes, call it with the same
        sample in each, before the model is wrapped.

        Raises:
            ValueError: no input is left.

        Source: Simon et al., "On the Relationship Between Activation Outliers and Feature Death in
        Sparse Autoencoders" (2026), for the mean; Gao et al. (2024) match magnitudes at the start.
        """
        without_onnx.refuse("nn.TopKSAE.initialize")
        check_integer("batch_size", batch_size, "an integer ≥ 1", 1)
        inputs = live_tokens_of(x, mask, self.d_in)
        inputs = inputs[inputs.isfinite().all(-1)]
        if not len(inputs):
            raise ValueError(f"x must have an input that is finite; got shape {tuple(x.shape)}")
        self.b_dec.copy_(inputs.to(torch.promote_types(x.dtype, torch.float32)).mean(0))
        agree = square = torch.zeros((), dtype=torch.float32, device=x.device)
        for part in torch.split(inputs, batch_size):
            code = code_of(self._scores(part, None)[0], self._coding(), None).code
            made = (code @ self.decoder()).float()
            agree = agree + (made * (part - self.b_dec).float()).sum()
            square = square + made.square().sum()
        factor = agree / square
        if factor > 0:  # not where no latent fires, as for a single input, which is the mean
            self.W_enc.mul_(factor)
            self.b_enc.mul_(factor)

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
        inputs = live_tokens_of(x, mask, self.d_in)
        inputs = inputs[~inputs.isnan().any(-1)]
        wanted = check_wanted(float(self.current_k()), len(inputs), x)
        parts = (
            sizes_of(self._scores(part, None)[0], self.signed)
            for part in torch.split(inputs, batch_size)
        )
        everything = wanted == len(inputs) * self.d_sae
        cut = torch.zeros_like(self.running.cut) if everything else cut_below(parts, wanted)
        self.running.fix(cut)


def check_wanted(k: float, inputs: int, x: Tensor) -> int:
    """Return how many scores are to fire for all inputs."""
    wanted = round(k * inputs)
    if not inputs:
        kind = "inputs without NaN" if x.numel() else "inputs"
        raise ValueError(f"x must have {kind} to choose from; got shape {tuple(x.shape)}")
    if not wanted:
        raise ValueError(f"x must have enough inputs for one latent; got {inputs} for k = {k:g}")
    return wanted
