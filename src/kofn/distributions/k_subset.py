"""The distribution over subsets of size k: exact, in O(n) for any n and k."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from kofn import links
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import (
    check_count,
    check_ends,
    check_other,
    check_per_row,
    check_same_kind,
    check_shape,
)
from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import (
    Array,
    adopt,
    as_array,
    cast,
    dtype_name,
    epsilon,
    framework,
    most_precise_dtype,
    quiet,
)
from kofn.arrays.operations import copied, same
from kofn.arrays.random import centred, check_rng, with_gumbel
from kofn.arrays.tracing import is_at_hand, is_known, may_be_kept
from kofn.arrays.typing import ArrayT
from kofn.arrays.without_onnx import refuse
from kofn.distributions.base import Discrete, OverRows
from kofn.maps.topk import hard_topk, soft_topk
from kofn.rows.compiled import whole
from kofn.rows.given import Given, given
from kofn.subsets import conditional_bernoulli, drawing, fitting, operations

__all__ = ["KSubset"]


class KSubset(OverRows[ArrayT], Discrete[ArrayT]):
    """The conditional Bernoulli distribution: P(S) ∝ exp Σ_{i∈S} logits_i for subsets of size k.

    It has the methods of torch.distributions, for tensors, JAX arrays (it is a pytree) and NumPy
    arrays. Every result is exact up to rounding and costs O(n) for any k, without approximations
    and without a table of k rows. For a temperature T, pass logits/T.

    Args:
        logits: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape. −inf is never
            chosen; +inf is chosen first; if there are more than k of them, k of these.
        k: the size of the subsets, an integer in [0, n] for n = logits.shape[dim], or an array of
            integers that broadcasts to the batch shape (`logits.shape` without `dim`).
        dim: the dimension of the n entries.
        mask: boolean, broadcasts to `logits`; False entries are never chosen.

    If fewer than k entries are available, all are chosen. A NaN affects its row only. Everything is
    differentiable in the logits, any number of times; first derivatives cost O(n) too.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype or shape, a number out of
            range. Entries of arrays are not checked; a bad one gives NaN in its row.

    Source: Chen, Dempster & Liu, "Weighted finite population sampling to maximize entropy" (1994)
    for the distribution; docs/subsets.md for the O(n) sums.

    Example:
        >>> import numpy as np
        >>> from kofn import KSubset
        >>> choice = KSubset(np.array([2.0, 1.0, 0.5, -1.0]), 2)
        >>> choice.marginals().round(3)
        array([0.852, 0.622, 0.42 , 0.105])
        >>> choice.log_prob(np.array([True, True, False, False])).round(3)
        np.float64(-0.715)
    """

    parts = ("logits", "k", "dim", "mask")
    said = ("k", "dim")
    k: Any
    _solved: Any = None
    """(logits, k, threshold) of the last rows: constants, whose memory nobody else has."""

    def __init__(
        self, logits: ArrayT, k: int | Array, dim: int = -1, mask: Array | None = None
    ) -> None:
        self._set(logits, dim, mask)
        self.k = _check_k(k, logits, self.batch_shape, self.dim)
        self._register()

    @classmethod
    def from_marginals(cls, pi: ArrayT, dim: int = -1) -> KSubset[ArrayT]:
        """Return the distribution with marginals `pi`; its logits are unique up to a constant.

        There is one for all entries in [0, 1] whose sum k is a whole number: of all distributions
        over subsets with these marginals, the one of largest entropy. No gradient passes.

        Args:
            pi: marginals, (…, n) along `dim`; 0 gives a logit of −inf, 1 of +inf.

        Returns:
            A KSubset with the sums as its k. Its marginals are `pi` to rounding, to fewer digits
            where an entry is so near to 0 or 1 that its rounding leaves the odds open.

        Raises:
            TypeError: `pi` of the wrong kind or dtype.
            ValueError: no distribution has these marginals: an entry outside [0, 1], or a sum
                further from a whole number k than √ε or, if that is more, the 4εk that rounding
                of the entries leaves open, ε the dtype's. To see this the entries are looked at,
                here alone; while JAX is tracing such a row becomes NaN.

        Source: Chen, Dempster & Liu (1994).

        Example:
            >>> import numpy as np
            >>> from kofn import KSubset
            >>> choice = KSubset.from_marginals(np.array([0.9, 0.6, 0.4, 0.1]))
            >>> choice.k, choice.marginals().round(3)
            (array(2, dtype=int32), array([0.9, 0.6, 0.4, 0.1]))
        """
        refuse("KSubset.from_marginals")
        form = form_of(pi, dim, "pi")
        xp, dim = form.xp, form.dim
        eps = epsilon(pi)
        with form.quiet():
            target = cast(stop_gradient(pi), most_precise_dtype(pi))
            total = xp.sum(target, axis=dim)
            k = as_array(xp.round(total))
            good = xp.all((target >= 0) & (target <= 1), axis=dim)
            good = good & (xp.abs(total - k) <= xp.clip(4 * eps * k, math.sqrt(eps), None))
            if is_known(good) and not bool(xp.all(good)):
                raise ValueError(
                    "pi must be marginals: each in [0, 1], their sum along dim a whole number; got "
                    f"entries from {float(xp.min(target)):.6g} to {float(xp.max(target)):.6g} and "
                    f"sums from {float(xp.min(total)):.12g} to {float(xp.max(total)):.12g}"
                )
            target = form.entries(target)
            k = xp.where(good, k, 0.0)
            logits = whole(fitting.fit, target, k, 8 * eps)
            logits = xp.where(good[..., None], logits, math.nan)
            return cls(form.restored(logits), cast(k, xp.int32), dim)

    def log_partition(self) -> ArrayT:
        """Return log Z = log Σ_S exp Σ_{i∈S} logits_i; its gradient is `marginals`.

        float32 for half-precision logits, like everything with the batch shape.
        """
        with quiet(self.logits):
            return whole(conditional_bernoulli.log_partition, self._rows())

    def marginals(self) -> ArrayT:
        """Return π_i = Pr(i ∈ S), like `logits`: in [0, 1], Σπ = k.

        In the articles (docs/from_the_articles.md): GradTopK, the gradient of the smoothed K-sum.

        Not the weights p of `soft_topk`, from which they differ by about 0.04 to 0.11 divided by
        V = Σp(1 − p), the variance of the number of heads of coins with these probabilities. So
        they agree where many weights are soft, and not just because k is large: for n = 1,000,
        k = 500 and logits spaced by 2, V is 0.5 and the largest difference is 0.136.
        See docs/subsets.md.
        """
        with quiet(self.logits):
            checked = self._given()
            y, k = checked.scores, checked.k
            return checked.restored(conditional_bernoulli.marginals_of(y, k, self._threshold(y, k)))

    @property
    def variance(self) -> ArrayT:
        """Return π(1 − π), in the shape of `logits`, from the smaller of the two factors."""
        with quiet(self.logits):
            return self._restore(whole(conditional_bernoulli.variance, self._rows()))

    def log_prob(self, subset: Array) -> ArrayT:
        """Return log P(subset): −inf if it is not k-hot, or impossible.

        Args:
            subset: booleans, or numbers 0 and 1, with the shape of `logits` behind any number of
                dimensions of samples. An entry that is neither gives NaN.

        Returns:
            The shape of the samples and the batch.

        Raises:
            TypeError, ValueError: another kind of array, or a shape that does not end in the
            shape of `logits`.
        """
        check_ends("subset", subset, self.logits)
        with quiet(self.logits):
            return whole(conditional_bernoulli.log_prob, self._rows(), self._entries(subset))

    def entropy(self) -> ArrayT:
        """Return −Σ_S P(S) log P(S), with the batch shape."""
        with quiet(self.logits):
            return whole(conditional_bernoulli.entropy, self._rows())

    def kl(self, other: KSubset[ArrayT]) -> ArrayT:
        """Return Σ_S P(S) log(P(S)/P_other(S)), with the batch shape; ∞ if `other` excludes an S.

        Args:
            other: a KSubset of the same kind with logits of the same shape and the same dim.
        """
        check_other(self, other)
        with quiet(self.logits):
            return whole(conditional_bernoulli.kl, self._rows(), other._rows())

    def mode(self) -> ArrayT:
        """Return the most likely subset: ones at the k largest logits, ties to the lowest index."""
        return hard_topk(self.logits, self.k, dim=self.dim, mask=self.mask)

    def sample(self, shape: int | tuple[int, ...] = (), rng: Any = None) -> ArrayT:
        """Draw subsets exactly from P, as ones and zeros.

        Args:
            shape: the shape of the samples; () for one.
            rng: as for `gumbel_max`. The same state gives the same subsets.

        Returns:
            shape + logits.shape in the dtype of `logits`; NaN in a row with one. No gradient:
            kofn.estimators gives the marginals' to a sample.
        """
        shape = check_shape(shape)
        rng = check_rng(rng, self.logits)
        with quiet(self.logits):
            rows = self._rows()
            heads = drawing.draw(stop_gradient(rows.z), rows.k, rng, shape)
            return self._restore(whole(conditional_bernoulli.drawn, rows, heads))

    def log_choices(self) -> float:
        """Return log C(n, k); ∞ for an array of k, which has no common list of choices."""
        if framework(self.k) is not None:
            return math.inf
        n, k = self.event_shape[0], int(self.k)
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    def support(self, factors: int | None = 0, **limit: int) -> ArrayT:
        if framework(self.k) is not None:
            raise TypeError("support needs one k for all rows; got an array")
        return super().support(factors, **limit)

    def _choices(self) -> np.ndarray:
        n, k = self.event_shape[0], int(self.k)
        members = np.array(list(itertools.combinations(range(n), k)), dtype=np.intp)
        rows = np.zeros((len(members), n))
        np.put_along_axis(rows, members.reshape(-1, k), 1.0, axis=1)
        return rows

    def perturb(self, shape: int | tuple[int, ...] = (), rng: Any = None) -> ArrayT:
        """Return logits + Gumbel noise, up to a constant per row; float32 for half precision.

        Its k largest are `PlackettLuce`'s draw, another distribution than this one. What
        perturbs, such as `estimators.reparameterized`, has that in its bias.
        """
        return with_gumbel(centred(self._playing(), self.dim), shape, rng)

    def choose(self, perturbed: ArrayT) -> ArrayT:
        """Return the k-hot vector of the k largest entries along dim, without a gradient."""
        return hard_topk(self._own(perturbed), self.k, dim=self.dim)

    def relax(self, perturbed: ArrayT, temperature: float | Array) -> ArrayT:
        """Return soft_topk(perturbed, k, temperature), whose limit at 0 is `choose`."""
        return soft_topk(self._own(perturbed), self.k, temperature=temperature, dim=self.dim)

    def covariance_vector_product(self, v: Array) -> ArrayT:
        """Return H v for H = Cov(1[i ∈ S], 1[j ∈ S]) = ∂π/∂logits, in O(n) without building H.

        Args:
            v: an array with the shape of `logits`.
        """
        check_same_kind("v", v, self.logits, "logits")
        shape, wanted = tuple(v.shape), tuple(self.logits.shape)
        if shape != wanted:
            raise ValueError(f"v must have the shape of logits, {wanted}; got {shape}")
        with quiet(self.logits):
            rows = self._rows()
            v = cast(self._entries(v), rows.logits.dtype)
            return self._restore(whole(conditional_bernoulli.covariance, rows, v))

    def _rows(self) -> conditional_bernoulli.Rows:
        checked = self._given()
        y, k = checked.scores, checked.k
        return whole(conditional_bernoulli.rows_of, y, k, self._threshold(y, k))

    def _threshold(self, y: Array, k: Array) -> tuple[Array, Array] | None:
        """Return the rows' threshold, which is solved for once; None where each use solves it.

        That is so for traced and transformed arrays, whose values must not outlive the trace; on
        devices, where to see that the logits are the same as before would wait; and for +inf.
        """
        if not is_at_hand(y):
            return None
        solved = self._solved
        if solved is None or not (same(solved[0], y) and same(solved[1], k)):
            fixed = stop_gradient(y)
            # Most sums tell that there is none, in a tenth of the time.
            if not math.isfinite(fixed.sum()) and bool((fixed == math.inf).any()):
                return None
            solved = copied(fixed), k, operations.threshold(y, k)
            if may_be_kept(y):
                self._solved = solved
        return solved[2]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_solved"}

    def _given(self) -> Given[ArrayT]:
        return given(self.logits, self.k, links.logistic, 1.0, self.dim, self.mask)

    def _entries(self, values: Array) -> ArrayT:
        return self._form.entries(adopt(values, self.logits))

    def _restore(self, values: Array) -> ArrayT:
        return self._form.restored(values)

    @property
    def _form(self) -> Form[ArrayT]:
        return form_of(self.logits, self.dim)


def _check_k(k: Any, logits: Array, batch: tuple[int, ...], dim: int) -> Any:
    if framework(k) is None:
        return check_count(k, logits.shape[dim], ", or an array of integers")
    check_same_kind("k", k, logits, "logits")
    if not dtype_name(k).startswith(("int", "uint")):
        raise TypeError(f"k must be an integer or an array of integers; got dtype {k.dtype}")
    return check_per_row("k", k, batch, dim, "logits")
