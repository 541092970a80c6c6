"""The tensors of a sparse autoencoder in eval(), as other libraries store them, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.nn import TopKSAE

WEIGHTS = ("W_enc", "b_enc", "W_dec", "b_dec")


def weights_of(sae: TopKSAE) -> dict[str, Tensor]:
    """Return W_enc [d_in, d_sae], b_enc, W_dec [d_sae, d_in] and b_dec, as eval() uses them."""
    if not isinstance(sae, TopKSAE):
        raise TypeError(f"sae must be a kofn.nn.TopKSAE; got {type(sae).__qualname__}")
    if sae.signed:
        raise ValueError(
            "sae must have codes without signs: the file has no architecture for signed=True; use "
            "state_dict()"
        )
    with torch.no_grad():
        used = {"W_dec": sae.decoder()}
        tensors = {name: used.get(name, getattr(sae, name)) for name in WEIGHTS}
    return {name: weight.detach().cpu().clone().contiguous() for name, weight in tensors.items()}


def whole_k(sae: TopKSAE) -> int:
    """Return k of selection="token" if it is a fixed integer; ValueError if it is not."""
    if sae.k.log is not None or callable(sae.k.given):
        how = "learned" if sae.k.log is not None else "scheduled"
        raise ValueError(
            f"k must be a fixed integer for selection='token', as the file holds one; it is {how}: "
            "copy the weights to a TopKSAE with that k"
        )
    return int(sae.k.given)


def threshold_of(sae: TopKSAE) -> float:
    """Return the threshold that eval() uses, rounded down to a number of the parameters' dtype.

    Rounding down changes no choice: a score of that dtype is above the threshold if and only if it
    is above the rounded one.
    """
    assert sae.running is not None
    cut = sae.running.cut.detach().cpu()
    if not bool(cut.isfinite()):
        raise ValueError(
            "the autoencoder has no threshold yet: train it, or call calibrate, before it is saved"
        )
    dtype = sae.W_enc.dtype
    rounded = cut.to(dtype)
    if rounded.to(cut.dtype) > cut:
        # The numbers of a half type, sorted as their bits: one less is the next below.
        bits = rounded.view(torch.int16 if rounded.element_size() == 2 else torch.int32)
        rounded = (bits - 1).view(dtype)
    return float(rounded)


def autoencoder(
    weights: dict[str, Any], k: float, threshold: float | None, dtype: torch.dtype
) -> TopKSAE:
    """Return a TopKSAE in eval() with these weights: by a threshold, or k of each input."""
    d_in, d_sae = weights["W_enc"].shape
    sae = TopKSAE(
        d_in,
        d_sae,
        k,
        selection="token" if threshold is None else "batch",
        decoder_norm="free",
        device=weights["W_enc"].device,
        dtype=dtype,
    )
    with torch.no_grad():
        for name in WEIGHTS:
            getattr(sae, name).copy_(weights[name])
        if sae.running is not None and threshold is not None:
            sae.running.fix(sae.running.cut.new_tensor(threshold))
    return sae.eval()
