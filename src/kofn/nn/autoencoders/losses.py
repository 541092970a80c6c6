"""The usual auxiliary loss for dead latents."""

from __future__ import annotations

from typing import Never

import torch
from torch import Tensor

from kofn.arrays.checks import check_integer
from kofn.arrays.names import unknown_keyword
from kofn.nn.autoencoders.code import sizes_of
from kofn.nn.autoencoders.sae import SAEOutput, TopKSAE


def auxk_loss(
    sae: TopKSAE, x: Tensor, output: SAEOutput, *, k: int | None = None, **others: Never
) -> Tensor:
    """Return ‖e − ê‖²/‖e − ē‖²: how badly silent latents reconstruct the error e of the others.

    e = x − reconstruction, without a gradient, ē its mean, and ê the sum of the decoder rows of
    the k silent latents with the largest scores, times relu of these scores; with signed=True, of
    the largest magnitudes, times the scores. 0 if no latent is silent, or if e = ē for every input,
    as it is for a single one.

    Args:
        sae: the one with these `silent_latents`; choose `silent_after` for this loss. x: [...,
        d_in]. output: the answer of `sae(x)`. k: an integer in [1, d_sae], by default half of d_in,
        as usual.

    Returns:
        A number. Add it to the mean squared error with a weight such as 1/32.

    Raises:
        TypeError, ValueError: k is no such integer.

    Source: Gao et al., "Scaling and Evaluating Sparse Autoencoders" (2024).

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> sae, x = nn.TopKSAE(16, 64, 4), torch.randn(10, 16)
        >>> output = sae(x)
        >>> loss = (output.reconstruction - x).square().mean() + nn.auxk_loss(sae, x, output) / 32
        >>> loss.backward()
    """
    if others:
        raise unknown_keyword(auxk_loss, others)
    most = f"an integer in [1, d_sae] (here d_sae = {sae.d_sae})"
    k = max(1, min(sae.d_in // 2, sae.d_sae)) if k is None else k
    k = check_integer("k", k, most, 1, sae.d_sae)
    silent = sae.silent_latents().to(output.scores.device)
    left = (x - output.reconstruction).detach()
    sizes = sizes_of(output.scores, sae.signed).masked_fill(~silent, -torch.inf)
    largest, indices = sizes.topk(k, -1)
    if sae.signed:  # fewer silent latents than k leave infinities
        scores = output.scores.gather(-1, indices)
        largest = torch.where(largest > -torch.inf, scores, 0.0)
    else:
        largest = largest.relu()
    code = torch.zeros_like(sizes).scatter(-1, indices, largest)
    error = (code @ sae.decoder() - left).square().mean()
    spread = (left - left.reshape(-1, sae.d_in).mean(0)).square().mean()
    # A division by 0 would be NaN in the gradient, whatever its value is replaced by.
    varied = spread > 0
    share = (error / torch.where(varied, spread, 1.0)).nan_to_num(0.0, 0.0, 0.0)
    return torch.where(silent.any() & varied, share, 0.0)
