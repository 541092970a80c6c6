"""The distribution of the relaxed one-hot samples of `gumbel_softmax`, and its density."""

from __future__ import annotations

import math
from typing import Any

from kofn.arrays.autodiff import divided, stop_gradient
from kofn.arrays.checks import check_ends, check_per_row, check_same_kind, check_temperature
from kofn.arrays.kinds import Array, adopt, cast, framework, namespace, quiet, special
from kofn.arrays.typing import ArrayT
from kofn.arrays.without_onnx import refuse
from kofn.distributions.base import OverRows
from kofn.distributions.categorical import Categorical, gumbel_softmax
from kofn.distributions.probabilities import log, logits_of
from kofn.rows.numbers import temperature_of

__all__ = ["RelaxedOneHot"]


class RelaxedOneHot(OverRows[ArrayT]):
    """p(w) = (n−1)!·T^{n−1}·Π_i (a_i w_i^{−T−1})/(Σ_i a_i w_i^{−T})^n on the simplex, a = e^logits.

    The density of `gumbel_softmax` samples, along the last dimension, with respect to n − 1 of the
    n weights. Near a corner, float32 weights round to 0. Use their logarithms there: `log_rsample`
    and `log_prob(…, logs=True)`.

    Args:
        logits: torch.Tensor, jax.Array or numpy.ndarray of floats, (…, n). An entry of −inf has
            weight 0 and is not counted in n.
        probs: e^logits instead of logits, as for `Categorical`.
        temperature: T > 0; a number or an array that broadcasts to `logits.shape[:-1]`.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype or shape.

    Source: Maddison, Mnih & Teh, "The Concrete Distribution" (2017); Jang, Gu & Poole (2017).

    Example:
        >>> import numpy as np
        >>> from kofn import RelaxedOneHot
        >>> law = RelaxedOneHot(np.log([0.5, 0.5]), 1.0)  # uniform on the segment
        >>> law.log_prob(np.array([[0.9, 0.1], [0.5, 0.5]])).round(12)
        array([0., 0.])
    """

    parts = ("logits", "temperature")
    has_rsample = True
    temperature: Any

    def __init__(
        self, logits: ArrayT | None = None, temperature: Any = None, *, probs: ArrayT | None = None
    ) -> None:
        logits = logits_of(logits, probs, log)
        self._set(logits, -1, None)
        if framework(temperature) is None:
            temperature = check_temperature(temperature)
        else:
            check_same_kind("temperature", temperature, logits, "logits")
            batch = tuple(logits.shape[:-1])
            temperature = check_per_row("temperature", temperature, batch, -1, "logits")
        self.temperature = temperature
        self._register()

    def rsample(self, shape: int | tuple[int, ...] = (), rng: Any = None) -> ArrayT:
        """Draw weights, shape + logits.shape, differentiable in the logits and the temperature."""
        return gumbel_softmax(self.logits, self.temperature, rng=rng, shape=shape)

    def sample(self, shape: int | tuple[int, ...] = (), rng: Any = None) -> ArrayT:
        """Draw as `rsample`, without a gradient."""
        return stop_gradient(self.rsample(shape, rng))

    def log_rsample(self, shape: int | tuple[int, ...] = (), rng: Any = None) -> ArrayT:
        """Draw logarithms of weights, so that no weight rounds to 0; differentiable."""
        with quiet(self.logits):
            noisy = self._choice.perturb(shape, rng)
            t = namespace(noisy).expand_dims(self._temperature(noisy), axis=-1)
            scaled = divided(noisy, t)
            return cast(Categorical(scaled)._log_probs(), self.logits.dtype)

    def log_prob(self, value: Array, *, logs: bool = False) -> ArrayT:
        """Return the log-density at `value`; −inf if it has weight at a logit of −inf, or none.

        Args:
            value: weights that sum to 1, shape + logits.shape.
            logs: `value` holds the logarithms of weights, and the density is of logarithms
                (less by Σ log w).

        Returns:
            The shape of the samples and the batch. NaN where a weight that may be anything is
            exactly 0: the density has no value on the boundary. 0 in a row with nothing left.

        Raises:
            TypeError, ValueError: another kind of array, or a shape that does not end in the
            shape of `logits`.
        """
        refuse("RelaxedOneHot.log_prob")
        check_ends("value", value, self.logits)
        value = adopt(value, self.logits)
        xp = namespace(value)
        with quiet(value):
            y, _ = self._choice._normalised()
            value = cast(value, y.dtype)
            play = y != -math.inf
            log_w = value if logs else xp.log(xp.where(play, value, 1.0))
            log_w = xp.where(play, log_w, 0.0)
            t = self._temperature(y)
            score = xp.where(play, y - xp.expand_dims(t, axis=-1) * log_w, -math.inf)
            log_p = Categorical(score)._log_probs()
            # A row with nothing left has one value, zeros.
            n = xp.clip(xp.sum(cast(play, y.dtype), axis=-1), 1.0, None)
            answer = xp.sum(xp.where(play, log_p, 0.0), axis=-1)
            answer = answer + special(n).gammaln(n) + (n - 1) * xp.log(t)
            if not logs:
                answer = answer - xp.sum(log_w, axis=-1)
            outside = -math.inf if logs else 0.0
            astray = xp.any(~play & (value != outside), axis=-1)
            answer = xp.where(xp.any(log_w == -math.inf, axis=-1), math.nan, answer)
            answer = xp.where(astray, -math.inf, answer)
            return xp.where(xp.any(xp.isnan(value), axis=-1), math.nan, answer)

    @property
    def _choice(self) -> Categorical[Any]:
        return Categorical(self.logits)

    def _temperature(self, like: Array) -> Array:
        return temperature_of(self.temperature, tuple(self.logits.shape[:-1]), like)
