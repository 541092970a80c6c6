"""Weights and values of rows from fused kernels, with first derivatives for eager torch.

torch.compile calls the kernels as operators (see torch_fused.py). torch.func, forward mode and
second derivatives use the reference instead, whose operations they can see.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kofn import kernels
from kofn.arrays.kinds import Array, cast, compute_dtype, of_torch
from kofn.arrays.operations import as_numbers, marked, take_along_last
from kofn.kernels.contract import kind_of
from kofn.rows import answers, choice, implicit, kernel_rows, kernel_weights
from kofn.rows.compiled import evaluate
from kofn.rows.given import NUMBERS, Given, without_bad_temperatures
from kofn.rows.settled import Rows, rows_of
from kofn.solver.reductions import DENSE, Reductions


def weights(given: Given, reference: Callable[[Rows], Array], single: bool = False) -> Array | None:
    """Return the weights of `given` from a kernel, or None if no kernel supports the rows.

    If `single`, those of half precision are float32.
    """
    if _on_jax(given):
        from kofn.rows.jax_weights import weights as traced

        return traced(given, reference)
    backend = _serving_eagerly(given)
    if backend is None:
        given = given.wide() if single else given
        operators = _operators(given)
        if operators is not None:
            return operators.weights_of(given)
        return _of_other_torch_rows(given, reference)
    if not _is_recorded(given):
        return kernel_weights.weights(backend, given, single=single)[0]
    rule = _OfWeights(backend, given, reference, single)
    return of_torch("rule").recorded(rule, *_tensors(given))


def _of_other_torch_rows(given: Given, reference: Callable[[Rows], Array]) -> Array | None:
    if given.form.kind != "torch":
        return None
    if given.over is not DENSE:
        from kofn.rows.torch_segment_weights import weights_of

        return weights_of(given)
    if given.link.static_and_array_alpha()[1] is None:
        return None
    from kofn.rows import each_alpha, torch_each_alpha, torch_fused

    if torch_fused.serves_each_alpha(given):
        return torch_each_alpha.weights_of(given)
    return each_alpha.weights(given, reference)


class _OfWeights:
    """A rule for weights that keeps θ. The shortest rows are fastest without its closures."""

    __slots__ = ("backend", "given", "reference", "single")

    def __init__(
        self, backend: kernels.RowKernels, given: Given, reference: Callable, single: bool = False
    ) -> None:
        self.backend, self.given = backend, given
        self.reference, self.single = reference, single

    def value(self, *tensors: Array) -> Any:
        found, theta = kernel_weights.weights(self.backend, self.given, single=self.single)
        self.given = _without_tensors(self.given)  # from here on, autograd alone has them
        return found, (theta,)

    def pullback(self, cotangent: Array, tensors: Any, kept: Any) -> Any:
        given = _with(self.given, tensors)
        in_scores, in_rows = kernel_weights.gradients(self.backend, given, cotangent, kept[0])
        if len(tensors) == 1:
            return (in_scores,)
        # Taking a tensor apart costs as much as the rest, and most learn the scores alone.
        arrays = ((i, a) for i, a in enumerate(given[1:3]) if type(a) is not float)
        return in_scores, *(in_rows[i] if a.requires_grad else None for i, a in arrays)

    def plain(self, *tensors: Array) -> Array:
        return _plainly(self.given, self.reference, tensors, self.single)


def hard(given: Given, k: Any) -> Array | None:
    """Return the hard top-k with the gradient of the weights, or None if no kernel supports that.

    `k` is the caller's. The weights themselves are not needed, only their θ.
    """
    backend = _serving_eagerly(given)
    if backend is None:
        return _hard_by_operator(given, k)
    if not _is_recorded(given):
        return choice.hard(without_bad_temperatures(given), k)
    numbers, k = _without_tensors(given), k if type(k) in NUMBERS else None

    def value(*tensors: Array) -> Any:
        found = _with(numbers, tensors)
        theta = kernel_rows.threshold_of(backend, found)
        return choice.hard(without_bad_temperatures(found), k), (theta,)

    pullback = _OfWeights(backend, numbers, answers.weights).pullback
    return _by_rule(given, numbers, value, pullback, answers.weights)


def _hard_by_operator(given: Given, k: Any) -> Array | None:
    operators = _operators(given)
    if operators is None or not operators.serves_choices(given.scores):
        return None
    if not _is_recorded(given):
        return choice.hard(without_bad_temperatures(given), k)
    return operators.hard_weights_of(given)


def threshold(given: Given) -> Array | None:
    """Return `implicit.theta` of rows, or None if no kernel supports them."""
    if given.form.kind == "jax":
        return None
    backend = _serving_eagerly(given)
    if backend is None:
        operators = _operators(given)
        return None if operators is None else operators.located_of(given)
    if not _is_recorded(given):
        return kernel_weights.located(backend, given)[0]
    numbers = _without_tensors(given)

    def value(*tensors: Array) -> Any:
        answer, found = kernel_weights.located(backend, _with(numbers, tensors))
        return answer, (found,)

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        slopes = kernel_weights.location_gradients(
            backend, _with(numbers, tensors), cotangent, kept[0]
        )
        learned = (type(number) is not float for number in numbers[:3])
        return tuple(slope for slope, one in zip(slopes, learned, strict=True) if one)

    return _by_rule(given, numbers, value, pullback, implicit.theta, single=True)


def value(given: Given) -> Array | None:
    """Return S_k of rows, with slopes p, θ and −Σ Ω(p); None if no kernel supports the rows."""
    backend = _serving_eagerly(given)
    if backend is None:
        operators = _operators(given, "values")
        return None if operators is None else operators.value_of(given, _is_recorded(given))
    if backend.values is None:
        return None
    if not _is_recorded(given):
        theta = kernel_rows.threshold_of(backend, given)
        return kernel_weights.values(backend, given, theta)[0]

    numbers = _without_tensors(given)

    def value(*tensors: Array) -> Any:
        answer, *kept = kernel_weights.value(backend, _with(numbers, tensors))
        return answer, kept

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        each = numbers.over.expand(cotangent) * kept[0]
        slopes = zip(numbers[1:3], kept[1:], strict=True)
        in_rows = (cotangent * slope for number, slope in slopes if type(number) is not float)
        return each.masked_fill(tensors[0] == math.inf, 0.0), *in_rows

    return _by_rule(given, numbers, value, pullback, answers.value)


def log_weights(given: Given) -> Array | None:
    """Return log p of rows; None if no kernel supports them, or on torch k has a gradient."""
    if _on_jax(given):
        from kofn.rows.jax_weights import log_weights as traced

        return traced(given)
    recorded = _is_recorded(given)
    if recorded and type(given.k) is not float and given.k.requires_grad:
        return None
    backend = _serving_eagerly(given)
    if backend is None:
        operators = _operators(given, "LOGARITHMS")
        return _other_logarithms(given) if operators is None else operators.log_weights_of(given)
    if kind_of(given.link) not in backend.LOGARITHMS:
        return None
    if not recorded:
        return kernel_weights.log_weights(backend, given)[0]
    numbers = _without_tensors(given)

    def value(*tensors: Array) -> Any:
        log_p, theta = kernel_weights.log_weights(backend, _with(numbers, tensors))
        return log_p, (theta,)

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        whole = _with(numbers, tensors)
        slopes = kernel_weights.log_gradients(backend, whole, cotangent, kept[0])
        others = [None] if type(whole.k) is not float else []
        others += [slopes[1]] if type(whole.temperature) is not float else []
        return slopes[0], *others

    return _by_rule(given, numbers, value, pullback, answers.log_weights)


def _other_logarithms(given: Given) -> Array | None:
    """Return log p of eager torch's rows with an alpha each."""
    if given.form.kind != "torch" or given.over is not DENSE:
        return None
    if given.link.static_and_array_alpha()[1] is None:
        return None
    from kofn.rows import each_alpha

    return each_alpha.log_weights(given, answers.log_weights)


def gap(given: Given, target: Array) -> Array | None:
    """Return `answers.gap` of rows for a target of weights, whose sum is k, or int64 labels.

    There is one label per row. None if no kernel supports the rows.
    """
    if _on_jax(given) and target.ndim == given.scores.ndim:
        given = _with_number(given, target)

    def plain(rows: Rows, target: Array, over: Reductions = DENSE) -> Array:
        if target.ndim < rows.scores.ndim:
            target = marked(rows.scores, target[..., None])
        return answers.gap(rows, cast(target, rows.scores.dtype), over)

    return _of_target(given, target, False, plain)


def label_loss(given: Given, labels: Array) -> Array | None:
    """Return −log softmax at int64 labels, one per row; None if no kernel supports the rows."""

    def plain(rows: Rows, labels: Array) -> Array:
        return -take_along_last(answers.log_softmax(rows), labels[..., None])[..., 0]

    return _of_target(given, labels, True, plain)


def _of_target(given: Given, target: Array, likely: bool, reference: Callable) -> Array | None:
    if _on_jax(given):
        from kofn.rows.jax_losses import losses as traced

        return traced(given, target, likely)
    backend = _serving_eagerly(given)
    if backend is None:
        operators = _operators(given, "gaps")
        if operators is None:
            return None
        return operators.gap_of(given, target, likely, _is_recorded(given))
    if backend.gaps is None:
        return None

    dense = target.ndim == given.scores.ndim

    def found(given: Given, target: Array, wanted: bool) -> tuple[Array, Array, Array]:
        target = kernel_weights.target_of(given.scores, target) if dense else target
        return kernel_weights.gap(backend, given, target, likely=likely, wanted=wanted)

    if not _is_recorded(given):
        return found(given, target, given.over is not DENSE)[0]
    numbers = _without_tensors(given)

    def value(target: Array, *tensors: Array) -> Any:
        loss, *kept = found(_with(numbers, tensors), target, True)
        return loss.clone(), kept

    def pullback(cotangent: Array, tensors: Any, kept: Any) -> Any:
        x, k, temperature, *_ = _with(numbers, tensors[1:])
        each = cotangent / temperature
        slopes = [None, kernel_weights.scaled(numbers.over.expand(each), kept[0], x)]
        slopes += [None] if type(k) is not float else []
        if type(temperature) is float:
            return slopes
        if likely:
            moved = kernel_weights.moved_from_labels(x, tensors[0], kept[0]) / temperature
        else:
            moved = kept[1]
        return *slopes, -each * moved

    def plain(target: Array, *tensors: Array) -> Array:
        again = _with(numbers, tensors)
        rows = rows_of(_with_number(again, target) if dense else again)
        return evaluate(reference, rows, target, over=numbers.over)

    rule = of_torch("rule")
    return rule.by_rule(rule.Rule(value, pullback, plain), target, *_tensors(given))


def _with_number(given: Given, target: Array) -> Given:
    """Return rows with the sum of a target of weights as their k."""
    return given._replace(k=given.over.sum(as_numbers(target, compute_dtype(given.scores))))


def _by_rule(
    given: Given,
    numbers: Given,
    value: Any,
    pullback: Any,
    reference: Callable[[Rows], Array],
    single: bool = False,
) -> Array:
    def plain(*tensors: Array) -> Array:
        return _plainly(numbers, reference, tensors, single)

    rule = of_torch("rule")
    return rule.recorded(rule.Rule(value, pullback, plain), *_tensors(given))


def _plainly(
    given: Given,
    reference: Callable[[Rows], Array],
    tensors: Sequence[Array],
    single: bool = False,
) -> Array:
    again = _with(given, tensors)
    found = evaluate(reference, rows_of(again), over=given.over)
    return cast(found, tensors[0].dtype) if again.is_half and not single else found


def _tensors(given: Given) -> list[Array]:
    """Return the scores, and k and the temperature where they are no numbers."""
    return [array for array in given[:3] if type(array) is not float]


def _without_tensors(given: Given) -> Given:
    """Return `given` without its tensors: a rule that kept them would hold their memory.

    Hooks on saved tensors and checkpoints let go of what autograd saves, and of nothing else.
    """
    _, k, t, link, form = given
    return Given(None, k if type(k) is float else None, t if type(t) is float else None, link, form)


def _with(given: Given, tensors: Sequence[Array]) -> Given:
    """Return `given` with these `_tensors`."""
    if len(tensors) == 1:
        return Given(tensors[0], *given[1:])
    left = iter(tensors)
    x, k, t = (old if type(old) is float else next(left) for old in given[:3])
    return Given(x, k, t, given.link, given.form)


def _operators(given: Given, what: str = "SERVED") -> Any:
    """Return the module of torch's operators for these rows; None if nothing compiles them."""
    if given.form.kind != "torch" or given.over is not DENSE:
        return None
    from kofn.rows import torch_fused

    return torch_fused if torch_fused.serves(given, what) else None


def _on_jax(given: Given) -> bool:
    return given.form.kind == "jax" and given.over is DENSE


def _is_recorded(given: Given) -> bool:
    if given.form.kind != "torch":
        return False
    x, k, temperature, *_ = given
    some = (
        x.requires_grad
        or (type(k) is not float and k.requires_grad)
        or (type(temperature) is not float and temperature.requires_grad)
    )
    return some and sys.modules["torch"].is_grad_enabled()


def _serving_eagerly(given: Given) -> kernels.RowKernels | None:
    """Return the kernels for these rows, or None if something traces or transforms them."""
    kind = given.form.kind
    if given.over is not DENSE and given.order is None:
        return None
    # Checked first: torch.compile cannot trace the code below.
    if kind == "torch" and not of_torch("state").is_plain(given.scores):
        return None
    return kernels.serving(given.scores, given.link, kind)
