"""The normal distribution and its reparameterised samples."""

from __future__ import annotations

import math
from typing import Any, Never

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import (
    check_broadcasts,
    check_ends,
    check_other,
    check_same_kind,
    check_scores,
    check_shape,
)
from kofn.arrays.kinds import (
    Array,
    adopt,
    as_array,
    cast,
    compute_dtype,
    dtype_name,
    namespace,
    quiet,
)
from kofn.arrays.names import unknown_keyword
from kofn.arrays.random import check_rng, standard_normal
from kofn.arrays.typing import ArrayT
from kofn.distributions.base import Distribution

__all__ = ["Normal", "normal_rsample"]


def normal_rsample(
    mean: ArrayT,
    scale: Array,
    rng: Any = None,
    *,
    shape: int | tuple[int, ...] = (),
    **others: Never,
) -> ArrayT:
    """Draw mean + scale·ε, ε standard normal, with gradients in the mean and the scale.

    Args:
        mean: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape, () for one number.
        scale: the standard deviation, ≥ 0, an array that broadcasts to `mean`.
        rng: as for `gumbel_max`.
        shape: the shape of the samples; () for one.

    Returns:
        shape + mean.shape in the dtype of `mean`; the noise of half precision is of float32.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype or shape.

    Source: Kingma & Welling, "Auto-Encoding Variational Bayes" (2014).

    Example:
        >>> import numpy as np
        >>> from kofn import normal_rsample
        >>> rng = np.random.default_rng(0)
        >>> normal_rsample(np.array([0.0, 100.0]), np.array([1.0, 0.0]), rng).round(3)
        array([  0.126, 100.   ])
    """
    if others:
        raise unknown_keyword(normal_rsample, others)
    return Normal(mean, scale).rsample(shape, rng)


class Normal(Distribution[ArrayT]):
    """Independent normal distributions N(mean, scale²), one per entry.

    The continuous law that kofn.estimators take, to compare reparameterisation with the
    score function where both apply. The batch shape is `mean`'s.

    Args:
        mean, scale: as for `normal_rsample`.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype or shape.

    Example:
        >>> import numpy as np
        >>> from kofn import Normal
        >>> Normal(np.array([0.0]), np.array([2.0])).log_prob(np.array([0.0])).round(3)
        array([-1.612])
    """

    parts = ("mean", "scale")
    has_rsample = True

    def __init__(self, mean: ArrayT, scale: Array) -> None:
        mean, scale = as_array(mean), as_array(scale)
        check_scores(mean, "mean", scalars=True)
        check_same_kind("scale", scale, mean, "mean")
        check_scores(scale, "scale", scalars=True)
        check_broadcasts("scale", tuple(scale.shape), tuple(mean.shape), "the shape of mean")
        self.mean = mean
        self.scale = scale
        self._register()

    def rsample(self, shape: int | tuple[int, ...] = (), rng: Any = None) -> ArrayT:
        """Draw differentiable samples by `normal_rsample`, of shape shape + mean.shape."""
        shape, rng = check_shape(shape), check_rng(rng, self.mean)
        mean, scale = self._parameters()
        noise = standard_normal(rng, (*shape, *mean.shape), mean)
        with quiet(mean):
            return cast(mean + scale * noise, self.mean.dtype)

    def sample(self, shape: int | tuple[int, ...] = (), rng: Any = None) -> ArrayT:
        """Draw as `rsample`, without a gradient."""
        return stop_gradient(self.rsample(shape, rng))

    def log_prob(self, value: Array) -> ArrayT:
        """Return the log-density per entry.

        Args:
            value: numbers with the shape of `mean` behind any number of dimensions of samples.

        Raises:
            TypeError, ValueError: another kind of array, or a shape that does not end in the
            shape of `mean`.
        """
        value = as_array(value)
        check_ends("value", value, self.mean, "mean")
        mean, scale = self._parameters()
        with quiet(mean):
            z = (cast(adopt(value, mean), mean.dtype) - mean) / scale
            return -(z * z) / 2 - namespace(mean).log(scale) - 0.5 * math.log(2 * math.pi)

    def entropy(self) -> ArrayT:
        """Return log scale + ½ log 2πe per entry."""
        mean, scale = self._parameters()
        xp = namespace(mean)
        with quiet(mean):
            return xp.zeros_like(mean) + xp.log(scale) + 0.5 * math.log(2 * math.pi * math.e)

    def kl(self, other: Normal[ArrayT]) -> ArrayT:
        """Return the divergence from `other` per entry; both means have the same shape."""
        check_other(self, other, "mean")
        (mean, scale), (about, width) = self._parameters(), other._parameters()
        with quiet(mean):
            ratio, distance = scale / width, (mean - about) / width
            return (ratio * ratio + distance * distance - 1) / 2 - namespace(mean).log(ratio)

    @property
    def variance(self) -> ArrayT:
        """Return scale², in the shape of `mean`."""
        mean, scale = self._parameters()
        xp = namespace(mean)
        return cast(xp.broadcast_to(scale * scale, mean.shape), self.mean.dtype)

    def mode(self) -> ArrayT:
        """Return the mean."""
        return self.mean

    def _parameters(self) -> tuple[ArrayT, ArrayT]:
        xp = namespace(self.mean)
        wide = "float64" in (dtype_name(self.mean), dtype_name(self.scale))
        dtype = xp.float64 if wide else compute_dtype(self.mean)
        return cast(self.mean, dtype), cast(adopt(self.scale, self.mean), dtype)
