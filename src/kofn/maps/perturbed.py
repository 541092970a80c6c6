"""How likely each score is to be the largest once noise is added: exactly, without samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kofn import links
from kofn.arrays.checks import check_number
from kofn.arrays.kinds import Array, quiet
from kofn.arrays.typing import ArrayT, NoiseName
from kofn.links.link import Link
from kofn.links.table import kinks_of
from kofn.maps import argmax_quadrature
from kofn.maps.softmax import softmax
from kofn.rows.compiled import evaluate
from kofn.rows.given import given, only_one, restore
from kofn.rows.settled import rows_of

__all__ = ["perturbed_argmax"]

NOISES = {
    "normal": links.normal,
    "uniform": links.linear,
    "logistic": links.logistic,
    "laplace": links.laplace,
}
GUMBEL = "gumbel"  # softmax: it needs no integral


def perturbed_argmax(
    scores: ArrayT,
    *,
    noise: NoiseName | Link = "normal",
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    kinks: Sequence[float] = (),
) -> ArrayT:
    """p_i = Pr(i is the largest of scores + temperature·noise), the noise independent.

    By quadrature over the maximum, not by sampling; "gumbel" is softmax. Order is kept and a shift
    changes nothing, as for softmax, but its tails are the noise's.

    Args:
        scores, temperature, dim, mask: as for `soft_topk`.
        noise: "normal", "logistic", "laplace" and "gumbel" in their standard form, "uniform" of
            width 1; or a kofn.Link, which is a distribution: its cdf and pdf are the noise's. An
            upper tail that is not bounded wants its sf, too.
        kinks: for a Link of your own, where its pdf jumps or bends, the ends of a bounded one
            included. Elsewhere the pdf must be smooth, and everywhere finite, or digits are lost.

    Returns:
        Weights like `scores` that sum to 1, differentiable twice in scores and temperature (a
        third derivative is infinite or NaN, not wrong). To 1e-10 in float64, 2e-6 in float32. A
        noise of links.entmax(alpha) with alpha ≥ 3 has an infinite slope where the largest scores
        tie, and there the gradient is infinite, too.

        Some 110 looks at a row in float32, 220 in float64; memory O(n). Where the pdf jumps at its
        upper end, as "uniform" does, each score within reach of the largest adds as many as a
        panel has. A pdf that begins steeply takes more: entmax(3) some
        four times as many as entmax(1.5).

    Raises:
        TypeError, ValueError: as for `soft_topk`; a noise that is none of these, `kinks` for one
            that is built in.

    Source: Berthet et al., "Learning with Differentiable Perturbed Optimizers" (2020), by samples;
    Karpukhin, Dereka & Kolesnikov, "EXACT: How to Train Your Accuracy" (2022).

    Example:
        >>> import numpy as np
        >>> from kofn import perturbed_argmax
        >>> perturbed_argmax(np.array([2.0, 1.0, 0.0])).round(4)
        array([0.7288, 0.2241, 0.0472])
        >>> perturbed_argmax(np.array([2.0, 1.0, 0.5]), noise="uniform").round(4)
        array([1., 0., 0.])
    """
    link = _resolve(noise)
    ends = kinks_of(link)
    if len(kinks):
        if isinstance(noise, str) or ends is not None:
            raise ValueError(f"kinks are for a noise of your own; got {kinks!r} for {noise!r}")
        finite = "a sequence of finite numbers"
        places = [check_number("kinks", z, low=-math.inf, allowed=finite) for z in kinks]
        ends = tuple((z, 1.0) for z in places)
    if noise == GUMBEL:
        return softmax(scores, temperature=temperature, dim=dim, mask=mask)
    what = given(scores, only_one(scores, dim), link, temperature, dim, mask)
    with quiet(scores):
        # Its parameter stays a number: where the noise ends is decided from it.
        rows = rows_of(what)._replace(link=link.inner)
        p = evaluate(argmax_quadrature.weights, rows, kinks=ends or ())
        return restore(p, scores, dim)


def _resolve(noise: str | Link) -> Link:
    """The noise as a distribution."""
    if isinstance(noise, str):
        if noise == GUMBEL:
            return links.exponential  # for which it is softmax
        if noise in NOISES:
            return NOISES[noise]
    elif isinstance(noise, Link):
        if noise.alpha is not None and not isinstance(noise.alpha, float):
            raise TypeError(
                f"noise must have a number for alpha; got an array of them in {noise!r}"
            )
        return noise
    names = ", ".join(map(repr, (*NOISES, GUMBEL)))
    error = ValueError if isinstance(noise, str) else TypeError
    raise error(f"noise must be one of {names}, or a kofn.Link; got {noise!r}")
