"""An even load of experts without a module: the bias of `nn.TopKRouter(balance="quantile")`.

    bias = jnp.zeros(experts)
    for batch in batches:
        logits = batch @ router
        gates, chosen = topk_gates(logits, k, bias=bias)
        ...
        bias = balance.quantile_bias(logits, k, bias, ema=0.9)

The bias is all of the state: it is saved, sharded and averaged as any array.
"""

from __future__ import annotations

from typing import Any, Never

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_integer, check_mask, check_number, check_same_kind
from kofn.arrays.form import form_of
from kofn.arrays.kinds import Array, adopt, cast, dtype_name, namespace
from kofn.arrays.names import answer_for_others, unknown_keyword
from kofn.arrays.typing import ArrayT
from kofn.maps.balance import bias_of_share, required_bias

__all__ = ["quantile_bias"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(__name__, __all__)


def quantile_bias(
    scores: ArrayT,
    k: int,
    bias: ArrayT,
    *,
    ema: float = 0.0,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return the bias with which each expert would have had k/E of these tokens.

    A token chooses by its k largest scores + bias. It requires of expert j a bias above α − s_j,
    where α is its (k + 1)-th largest score + bias; the new bias of j is the k/E-quantile of what
    the tokens require, less the mean over experts. Add it for the choice alone, in the next batch.

    Args:
        scores: (…, E) logits of the router, or its sigmoids, for each token.
        k: experts per token, an integer in 1..E. With k = E there is nothing to balance.
        bias: (E,) the bias that the tokens chose by; zeros at the beginning.
        ema: the weight of the old bias in the new one, in [0, 1).
        mask: (…) boolean, False for tokens that do not count.

    Returns:
        The new bias (E,), with the dtype of `bias` and mean 0, without a gradient. An expert of
        which nothing is known keeps its bias; so do all if no token counts.

    For several devices or micro-batches of as many tokens each, take the mean of their answers to
    the same bias, as `nn.TopKRouter` does with `bins=None`.

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype or shape, or a number is out
            of range.

    Source: Su, "MoE journey 6" (kexue.fm/archives/11619, 2026).

    Example:
        >>> import numpy as np
        >>> from kofn import balance
        >>> logits = np.random.default_rng(0).normal(size=(300, 3)) + [1, 0, -1]
        >>> np.bincount(logits.argmax(-1))
        array([213,  74,  13])
        >>> bias = np.zeros(3)
        >>> for _ in range(6):
        ...     bias = balance.quantile_bias(logits, 1, bias)
        >>> np.bincount((logits + bias).argmax(-1))
        array([102, 101,  97])
    """
    if others:
        raise unknown_keyword(quantile_bias, others)
    form = form_of(scores, -1)
    experts = scores.shape[-1]
    k = check_integer("k", k, f"an integer in 1..{experts}, the number of experts", 1, experts)
    ema = check_number("ema", ema, low=0.0, allowed="a number in [0, 1)", below=1.0, arrays=False)
    bias = adopt(check_same_kind("bias", bias, scores), scores)
    if tuple(bias.shape) != (experts,):
        raise ValueError(
            f"bias must have a number per expert, shape ({experts},); got {tuple(bias.shape)}"
        )
    tokens = scores[..., 0]
    playing = None if mask is None else adopt(check_mask(mask, tokens), tokens)
    if playing is not None:
        playing = form.xp.broadcast_to(playing, tokens.shape).reshape((-1,))
    own = "float" in dtype_name(bias) and bias.dtype.itemsize <= 8  # no booleans, no long doubles
    dtype = bias.dtype if own else scores.dtype
    old = stop_gradient(cast(bias, dtype))
    if k == experts or 0 in tokens.shape:
        return old
    with form.quiet():
        rows = stop_gradient(scores).reshape((-1, experts))
        level, _ = bias_of_share(required_bias(rows, rows + old, k), k, playing)
        moved: ArrayT = cast(_moved(level, old, ema), dtype)
        return moved


def _moved(level: Any, old: Any, ema: float) -> Any:
    """Return the average of a level and the old bias, with mean 0; the old bias where it is NaN."""
    xp = namespace(level)
    level = ema * old + (1 - ema) * level
    known = xp.isfinite(level)
    new = xp.where(known, level, cast(old, level.dtype))
    # An expert that nobody may use keeps its bias, and would be raised with the mean.
    count = xp.sum(cast(known, new.dtype))
    mean = xp.sum(new) / xp.maximum(count, xp.ones_like(count))
    new = xp.where(known, new - mean, new)
    fits = xp.all(xp.isfinite(new)) & xp.any(known)
    return xp.where(fits, new, cast(old, new.dtype))
