"""What a form of arrays is, and what holds for a function that is called with it."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from calls import BOOLEAN, FLOAT, INTEGER, Call, array_of, surroundings

EVERY = FLOAT + INTEGER + BOOLEAN

# Arguments for which a number, or an array of fewer dimensions, may stand.
BROADCAST = {"k", "temperature", "alpha", "scale", "support", "budget", "capacity", "costs", "c"}
BROADCAST |= {"lower", "upper", "w", "mask", "bias", "weights"}
# Of the answers, and of gradients relative to their norm.
TOLERANCE = {"float64": 1e-10, "float32": 2e-5}


Values = Callable[[Call, str, np.ndarray], np.ndarray]


def as_it_is(call: Call, name: str, value: np.ndarray) -> np.ndarray:
    return value


def any_argument(call: Call, name: str) -> bool:
    return True


def never(call: Call) -> bool:
    return False


def always(call: Call) -> bool:
    return True


def plain_alone(call: Call) -> bool:
    """Functions of shards, and means that outlive a call, take no subclasses of tensors."""
    return ".distributed." in call.name or "RunningMean" in call.name


def may_be_a_number(call: Call, name: str) -> bool:
    return name in BROADCAST and name != call.first


def zeros_and_ones(call: Call, name: str, value: np.ndarray) -> np.ndarray:
    looked_at = call.name == "kofn.RelaxedOneHot.to_torch"  # by torch: a point of the simplex
    if call.kind_of(name) != FLOAT or looked_at:
        return value
    return (value > 0).astype(float)


def of_eight_bits(call: Call, name: str, value: np.ndarray) -> np.ndarray:
    """What is left of the numbers in a float8."""
    if call.kind_of(name) != FLOAT or call.name == "kofn.RelaxedOneHot.to_torch":
        return value
    return torch.tensor(value, device="cpu").to(torch.float8_e4m3fn).double().numpy()


def not_in_parts(call: Call, name: str) -> bool:
    """Streaming takes lists of arrays as one row."""
    return ".streaming." not in call.name


def one_number(call: Call, name: str, value: np.ndarray) -> np.ndarray:
    if not may_be_a_number(call, name):
        return value
    return np.full_like(value, value.flat[0])


def is_matrix(call: Call, name: str) -> bool:
    return call.arguments[name].ndim == 2


def of_rows(call: Call, name: str) -> bool:
    return call.arguments[name].ndim > 1


def first_row(call: Call, name: str, value: np.ndarray) -> np.ndarray:
    """The first row, or number, for all; segments need their ids as they are."""
    if value.ndim < 2 and (call.kind_of(name) == INTEGER or name == call.first):
        return value
    return np.broadcast_to(value[:1], value.shape).copy()


def beside(call: Call, name: str) -> bool:
    """What stands beside the argument that says which framework it is."""
    return name != call.first


@dataclass(frozen=True)
class Form:
    """A way to hold the numbers of an ordinary array."""

    name: str
    framework: str
    make: Callable[[Any], Any] = lambda plain: plain
    """The array in this form, of a plain one."""
    kinds: str = EVERY
    """Which kinds of arrays have it: FLOAT, INTEGER, BOOLEAN."""
    of: Callable[[Call, str], bool] = any_argument
    """Which arguments of a call take it."""
    values: Values = as_it_is
    """What an argument's numbers are: those of the example, or others that the form needs."""
    refused: Callable[[Call], bool] = never
    """Which functions may refuse it, by an error that names an argument."""
    dtype: str = ""
    """The dtype of floats, where the form has one of its own."""
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """What surrounds the call, but not the making of its arrays."""
    learned: bool = True
    """Whether an array in this form may be differentiated."""
    wide: bool = True
    """Whether integers have 64 bits as they have elsewhere; if not, all arrays have this form."""

    def arguments_of(self, call: Call) -> tuple[str, ...]:
        """The arguments of a call that can have this form."""
        return tuple(n for n in call.arrays if call.kind_of(n) in self.kinds and self.of(call, n))

    def plain(self, call: Call, dtype: str) -> dict[str, Any]:
        """All arguments of a call, with ordinary arrays of the numbers that the form needs."""
        return plain(call, self.framework, dtype, self.values)


class Wrong(AssertionError):
    """A function answered what it should not, or raised an error that does not help."""


def hold(call: Call, form: Form, names: tuple[str, ...], dtype: str) -> str:
    """Check what a call answers with these arguments in a form; return "right" or "refused"."""
    dtype = form.dtype or dtype
    learned = call.learned if form.learned and form.framework != "numpy" else ()
    with surroundings(call):
        given = prepared(form.plain(call, dtype), form.framework, learned)
        given |= {name: form.make(given[name]) for name in names}
        if form.framework == "jax":
            learned = tuple(name for name in learned if isinstance(given[name], jax.Array))
        before = {name: memory(given[name]) for name in names}
        try:
            with form.around():
                found = answered(call, form.framework, given, learned)
        except (TypeError, ValueError, NotImplementedError) as error:
            if form.refused(call) and names_what_is_wrong(str(error), call):
                return "refused"
            raise Wrong(f"{type(error).__name__}: {error}") from error
        expected = of_plain(call, form.framework, dtype, form.values, learned)
    for name in names:
        if memory(given[name]) != before[name]:
            raise Wrong(f"{name} was written to")
    compare(expected, found, form, dtype)
    return "right"


Answers = tuple[list[Any], list[Any]]


@functools.cache
def of_plain(
    call: Call, framework: str, dtype: str, values: Values, learned: tuple[str, ...]
) -> Answers:
    """What the call answers with ordinary arrays, and the gradients."""
    given = prepared(plain(call, framework, dtype, values), framework, learned)
    return answered(call, framework, given, learned)


def plain(call: Call, framework: str, dtype: str, values: Values) -> dict[str, Any]:
    """All arguments of a call, with ordinary arrays of the numbers that a form needs."""
    return {
        name: array_of(framework, values(call, name, value), dtype)
        if isinstance(value, np.ndarray)
        else value
        for name, value in call.arguments.items()
    }


def prepared(given: dict[str, Any], framework: str, learned: tuple[str, ...]) -> dict[str, Any]:
    """The arguments, with a graph behind what is learned where PyTorch has one."""
    if framework == "torch":
        for name in learned:
            given[name].requires_grad_()
    return given


def names_what_is_wrong(message: str, call: Call) -> bool:
    """Whether a message begins with an argument or a function, as all of kofn's do."""
    if message.startswith("Expected value argument") and "to_torch" in call.name:
        return True  # torch.distributions checks it
    named = {*call.arguments, "logits", "scores", "other.logits", "other.mean", "rng", "k"}
    named |= {"a nested tensor", call.public, call.public.rpartition(".")[2]}
    return bool(re.match(rf"({'|'.join(map(re.escape, sorted(named, reverse=True)))})\b", message))


def answered(
    call: Call, framework: str, given: dict[str, Any], learned: tuple[str, ...]
) -> Answers:
    """The answers of a call, and the gradients of a sum of them in what is learned."""
    if not learned:
        return list(call(framework, **given)), []
    if framework == "jax":
        return of_jax(call, given, learned)
    answers = list(call(framework, **given))
    total = sum(weighed(each) for each in answers if torch.is_tensor(each) and each.requires_grad)
    if not torch.is_tensor(total):
        raise Wrong(f"no answer has a gradient, where {', '.join(learned)} have one")
    leaves = [given[name] for name in learned]
    slopes = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return answers, list(slopes)


def of_jax(call: Call, given: dict[str, Any], learned: tuple[str, ...]) -> Answers:
    def total(leaves: dict[str, Any]) -> Any:
        answers = list(call("jax", **{**given, **leaves}))
        floats = [each for each in answers if jnp.issubdtype(each.dtype, jnp.floating)]
        return sum(map(weighed_by_jax, floats)), answers

    leaves = {name: given[name] for name in learned}
    slopes, answers = jax.grad(total, has_aux=True)(leaves)
    return answers, [slopes[name] for name in learned]


def weighed_by_jax(answer: Any) -> Any:
    weights = jnp.cos(jnp.arange(answer.size)).reshape(answer.shape).astype(answer.dtype)
    return jnp.where(jnp.abs(answer) < jnp.inf, answer * weights, 0.0).sum()


def weighed(answer: torch.Tensor) -> torch.Tensor:
    """A sum of the entries of an answer, each with a weight of its own."""
    weights = torch.arange(answer.numel(), device="cpu", dtype=torch.float64).cos()
    weights = weights.reshape(answer.shape).to(answer.device, answer.dtype)
    return torch.where(answer.abs() < torch.inf, answer * weights, 0.0).sum()


def memory(array: Any) -> bytes:
    """All bytes that an array can see, and those between them."""
    if isinstance(array, np.ndarray):
        while isinstance(array.base, np.ndarray):
            array = array.base
        return array.tobytes()
    if isinstance(array, torch.Tensor) and array.layout == torch.strided:
        if array.device.type == "cpu" and not array.is_nested:
            with contextlib.suppress(RuntimeError, NotImplementedError):
                return bytes(array.untyped_storage())
        return b""
    return np.asarray(array).tobytes() if isinstance(array, jax.Array) else b""


def numbers(answer: Any) -> np.ndarray:
    """What an answer holds, in float64 if it holds floats."""
    if isinstance(answer, torch.Tensor):
        answer = answer.detach().as_subclass(torch.Tensor).resolve_neg()
        answer = answer.double() if answer.is_floating_point() else answer
        return answer.numpy(force=True)
    answer = np.asarray(answer)
    return answer if answer.dtype.kind in "biu" else answer.astype(np.float64)


def kind_and_dtype(answer: Any, wide: bool = True) -> tuple[str, str]:
    if not wide and str(getattr(answer, "dtype", "")) == "int64":
        return "jax", "int32"
    if isinstance(answer, torch.Tensor):
        return "torch", str(answer.dtype)
    if isinstance(answer, jax.Array):
        return "jax", str(answer.dtype)
    if isinstance(answer, (np.ndarray, np.generic)):
        return "numpy", str(answer.dtype.newbyteorder("="))
    return "number", type(answer).__name__


def compare(expected: Any, found: Any, form: Form, dtype: str) -> None:
    """Check that answers and gradients are of one kind, dtype and shape, and the same numbers."""
    for what, wanted, got in zip(("answer", "gradient"), expected, found, strict=True):
        if len(wanted) != len(got):
            raise Wrong(f"{len(got)} answers for {len(wanted)}")
        for one, other in zip(wanted, got, strict=True):
            kinds = kind_and_dtype(one, form.wide), kind_and_dtype(other)
            if kinds[0] != kinds[1]:
                raise Wrong(f"{what} {kinds[1]} for {kinds[0]}")
            if np.shape(one) != np.shape(other):
                raise Wrong(f"{what} of shape {np.shape(other)} for {np.shape(one)}")
            close(what, numbers(one), numbers(other), TOLERANCE[dtype])


def close(what: str, wanted: np.ndarray, got: np.ndarray, tolerance: float) -> None:
    finite = wanted[np.isfinite(wanted)]
    size = 1.0 + float(np.max(np.abs(finite), initial=0.0))
    if not np.allclose(wanted, got, rtol=0.0, atol=tolerance * size, equal_nan=True):
        raise Wrong(f"{what} {got.tolist()} for {wanted.tolist()}"[:300])
