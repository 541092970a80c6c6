"""Score-function estimators (REINFORCE): values of f times ∇log P, with baselines."""

from __future__ import annotations

from typing import Any, Never

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_broadcasts, check_number, check_same_kind, check_scores, shown
from kofn.arrays.kinds import (
    FLOATS,
    Array,
    cast,
    dtype_name,
    framework,
    most_precise_dtype,
    namespace,
    quiet,
)
from kofn.arrays.names import unknown_keyword
from kofn.arrays.tracing import is_known
from kofn.arrays.typing import ArrayT
from kofn.estimators.protocol import (
    Distribution,
    Function,
    adopted,
    check_samples,
    mean,
    together,
    values_of,
)


class RunningMean:
    """A baseline: the mean of past values of f, exponentially forgetting.

    Pass one object to `score_function` at every step; each call subtracts the mean of the calls
    before it, so the estimate keeps its expectation, and then adds its own values. Not inside
    jax.jit or torch.compile, which would run the update once: there, keep a number of your own and
    pass it as `baseline`.

    Args:
        decay: in [0, 1): the weight of the past at each update.

    Example:
        >>> import numpy as np
        >>> from kofn import estimators
        >>> past = estimators.RunningMean(decay=0.5)
        >>> past.update(np.array([4.0, 6.0]))
        >>> past.update(np.array([8.0]))
        >>> past.mean  # (5·0.25 + 8·0.5)/0.75
        np.float64(7.0)
    """

    def __init__(self, decay: float = 0.99) -> None:
        self.decay = check_number("decay", decay, low=0.0, below=1.0, allowed="a number in [0, 1)")
        self.total: Any = 0.0
        self.weight = 0.0

    @property
    def mean(self) -> Any:
        """Return the mean so far, corrected for its start at 0; 0 before the first update."""
        return self.total / self.weight if self.weight else 0.0

    def update(self, values: Array) -> None:
        """Add the mean of all `values` to the running mean."""
        _, dtype = check_scores(values, "values", integers=True, scalars=True)
        if not is_known(values):
            raise TypeError(
                f"values must be a plain array; got {shown(values)}: a RunningMean cannot be "
                "updated while jax.jit or torch.compile traces it, nor by a subclass of tensors; "
                "keep the mean outside and pass it as baseline"
            )
        if 0 in values.shape:
            raise ValueError(f"values must have entries; got the shape {tuple(values.shape)}")
        values = values if dtype in FLOATS else cast(values, most_precise_dtype(values))
        new = namespace(values).mean(stop_gradient(values))
        self.total = self.decay * self.total + (1 - self.decay) * new
        self.weight = self.decay * self.weight + (1 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that `load_state_dict` restores exactly."""
        return {"total": self.total, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.total, self.weight = state["total"], state["weight"]


def surrogate(
    values: ArrayT,
    log_prob: Array,
    *,
    baseline: str | float | Array | RunningMean | None = None,
    **others: Never,
) -> ArrayT:
    """Return Σ f/m over m samples, with the gradient Σ (f − b)·∇log P/m, as `score_function`.

    For values that come from elsewhere, a simulator or an environment.

    Args:
        values: f of m samples on the first axis. Where they have a gradient of their own, in f's
            parameters, it is kept.
        log_prob: their `log_prob`, of the same shape; with more dimensions, of independent
            choices that f took together, these are added up.
        baseline: as for `score_function`.

    Returns:
        The mean over the first axis, to differentiate.

    Raises:
        TypeError, ValueError: arrays of different kinds or shapes, a baseline that is none.

    Source: Williams, "REINFORCE" (1992).

    Example:
        >>> import numpy as np
        >>> from kofn import KSubset, estimators
        >>> choice = KSubset(np.array([2.0, 1.0, 0.0]), 2)
        >>> subsets = choice.sample(4, np.random.default_rng(0))
        >>> cost = subsets @ np.array([1.0, 2.0, 4.0])
        >>> one = estimators.surrogate(cost, choice.log_prob(subsets), baseline="leave_one_out")
        >>> bool(one == cost.mean())
        True
    """
    if others:
        raise unknown_keyword(surrogate, others)
    check_scores(log_prob, "log_prob", scalars=True)
    log_prob = together(log_prob, values)
    if dtype_name(values) != "bool":
        check_scores(values, "values", integers=True, scalars=True)
    if values.ndim == 0 or values.shape[0] < 1:
        raise ValueError(
            "values must have at least 1 sample on the first axis; "
            f"got the shape {tuple(values.shape)}"
        )
    with quiet(values):
        weight = _weight(values, baseline)
        return mean(values + weight * (log_prob - stop_gradient(log_prob)))


def score_function(
    choice: Distribution[ArrayT],
    f: Function[ArrayT],
    rng: Any = None,
    *,
    samples: int = 1,
    baseline: str | float | Array | RunningMean | None = None,
    **others: Never,
) -> ArrayT:
    """Return mean f(S), with the gradient mean (f(S) − b)·∇log P(S): REINFORCE.

    Biased: no, with any of the baselines below.
    Needs of f: values only.
    Calls of f: samples.

    Args:
        choice: a distribution with `sample` and `log_prob`.
        f: from samples, (samples,) + the shape of one, to values, (samples,) + the batch shape or
            the beginning of it: choices that f takes together are independent factors.
        rng: a torch.Generator, numpy.random.Generator or JAX key; an integer gives the same
            samples at each call; without one torch's global generator draws, or NumPy's fresh
            from the system.
        samples: number of samples.
        baseline: None; a number, or an array that broadcasts to f's values, which does not depend
            on the samples; a `RunningMean`; or "leave_one_out": the mean of the other samples, of
            which there must be at least two.

    Returns:
        The mean of f, with the batch shape, to differentiate.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, or what f returns has a wrong shape.

    Source: Glynn (1990); Williams, "REINFORCE" (1992).

    Example:
        >>> import torch
        >>> from kofn import Categorical, estimators
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> cost = torch.tensor([4.0, 5.0, 6.0])
        >>> rng = torch.Generator().manual_seed(0)
        >>> loss = estimators.score_function(
        ...     Categorical(logits), lambda s: s @ cost, rng, samples=10_000, baseline=5.0
        ... )
        >>> loss.backward()
        >>> logits.grad.round(decimals=2)  # exactly (−1/3, 0, 1/3)
        tensor([-0.3300, -0.0000,  0.3300])
    """
    if others:
        raise unknown_keyword(score_function, others)
    choice = adopted(choice)
    z = choice.sample((check_samples(samples),), rng)
    return surrogate(values_of(f, z), choice.log_prob(z), baseline=baseline)


def leave_one_out(
    choice: Distribution[ArrayT],
    f: Function[ArrayT],
    rng: Any = None,
    *,
    samples: int = 2,
    **others: Never,
) -> ArrayT:
    """Return `score_function` with the mean of the other samples as baseline: RLOO.

    Biased: no.
    Needs of f: values only.
    Calls of f: samples, at least two.

    Args:
        choice, f, rng: as for `score_function`.
        samples: number of samples, at least two.

    Source: Kool, van Hoof & Welling, "Buy 4 REINFORCE Samples, Get a Baseline for Free!" (2019).

    Example:
        >>> import numpy as np
        >>> from kofn import Categorical, estimators
        >>> f = lambda s: s @ np.array([4.0, 5.0, 6.0])
        >>> choice, rng = Categorical(np.zeros(3)), np.random.default_rng(0)
        >>> round(float(estimators.leave_one_out(choice, f, rng, samples=100)), 1)
        5.0
    """
    if others:
        raise unknown_keyword(leave_one_out, others)
    samples = check_samples(samples, 2)
    return score_function(choice, f, rng, samples=samples, baseline="leave_one_out")


def _weight(values: ArrayT, baseline: Any) -> ArrayT:
    """Return the values f less their baseline, without a gradient."""
    fixed = stop_gradient(values)
    if baseline is None:
        return fixed
    if isinstance(baseline, str):
        if baseline != "leave_one_out":
            allowed = "None, 'leave_one_out', a number, an array or a RunningMean"
            raise ValueError(f"baseline must be {allowed}; got {baseline!r}")
        m = values.shape[0]
        if m < 2:
            raise ValueError(
                "values must have at least 2 samples on the first axis to leave one out; "
                f"got the shape {tuple(values.shape)}"
            )
        # f − Σ_others f/(m − 1) = (f − mean)·m/(m − 1)
        return (fixed - mean(fixed)) * (m / (m - 1))
    if isinstance(baseline, RunningMean):
        weight = fixed - baseline.mean
        baseline.update(fixed)
        return weight
    if framework(baseline) is None:
        allowed = "None, 'leave_one_out', a number"
        return fixed - check_number("baseline", baseline, low=-float("inf"), allowed=allowed)
    check_same_kind("baseline", baseline, values, "values")
    check_broadcasts("baseline", tuple(baseline.shape), tuple(values.shape), "the shape of values")
    return fixed - cast(stop_gradient(baseline), fixed.dtype)
