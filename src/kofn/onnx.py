"""Translations of kofn's operators to ONNX, for torch.onnx.export(dynamo=True).

    torch.onnx.export(model, args, dynamo=True, custom_translation_table=kofn.onnx.translations())

Import it by name (`import kofn.onnx`). It needs onnx and onnxscript, as torch.onnx does:
`pip install "kofn[onnx]"`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional, Protocol

import torch

try:
    import onnx
    from onnxscript import opset18

    if not TYPE_CHECKING:  # onnxscript has no types that a checker knows
        from onnxscript.onnx_types import TensorType
except ImportError as error:
    raise ImportError(
        "kofn.onnx needs onnx and onnxscript, as torch.onnx.export(dynamo=True) does; "
        'install them with: pip install "kofn[onnx]"'
    ) from error

from kofn.arrays.torch.operator import OPERATORS, translated
from kofn.kernels.contract import KINDS, POWER, kind_of
from kofn.links import table
from kofn.links.built_in.entmax import NEAR_1
from kofn.links.link import by_id
from kofn.links.recorded import tail_in_words, target
from kofn.links.scalar import ScalarLink, reach_of
from kofn.links.targets import arguments_of
from kofn.links.two_tails import apart
from kofn.metrics import torch_temperature as torch_temperature

if TYPE_CHECKING:
    TensorType = Any  # what an operator of ONNX takes and gives

__all__ = ["translations"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


class Operators(Protocol):
    """The operators of ONNX."""

    def __getattr__(self, name: str) -> Callable[..., TensorType]: ...


op: Operators = opset18

HALVINGS = 44
"""From 256 temperatures down to a rounding of float32; a wider bracket is a gap without a root."""
HALVINGS_OF_LOGARITHMS = 48
"""From ±160, which is every price of float32, to a relative distance of 1e-12."""
HALVINGS_OF_PRICES = 20
"""From there to a rounding of float64."""
REACH = 128.0
"""Every built-in link is 0 or 1 to rounding so many temperatures away."""


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the `custom_translation_table` of kofn's operators for torch.onnx.export.

    The threshold is found by halving a bracket a fixed number of times, for the links of
    `kofn.links` with a number for alpha; the batch may be dynamic. Refused, by name, are links of
    your own, an alpha per row, and the functions that docs/arrays.md lists.

    Returns:
        Operators of PyTorch and their translations: a new dictionary, to add your own to.

    Weights meet eager ones to 2e-6; prices of `soft_knapsack` are found in float64. In a
    gap between scores that is so wide that every threshold in it gives the same weights,
    `soft_topk_threshold` may be another of those.
    """
    translated.append(True)
    return {
        OPERATORS.threshold.default: _threshold,
        OPERATORS.price.default: _price,
        OPERATORS.temperature.default: _temperature,
        torch.ops.aten.sort.stable: _sort,
        torch.ops.aten.where.self: _where,
        torch.ops.aten.full.default: _full,
        torch.ops.aten.new_full.default: _new_full,
        torch.ops.aten.scalar_tensor.default: _scalar_tensor,
        torch.ops.aten.frexp.Tensor: _frexp,
        torch.ops.aten.atan.default: _atan,
        torch.ops.aten.erfc.default: _erfc,
        torch.ops.aten.special_erfc.default: _erfc,
    }


def _threshold(
    x: TensorType,
    k: TensorType,
    temperature: TensorType,
    alpha: Optional[TensorType] = None,  # noqa: UP045  onnxscript reads it
    link: str = "logistic",
    number: Optional[float] = None,  # noqa: UP045
) -> Sequence[Any]:
    """Return θ as the ⌈k⌉-th largest score and a distance from it, found by bisection."""
    tail, temperatures = _tail_of(link, number, alpha), reach_of(link, REACH)
    sort, last = _sorted(x), op.Constant(value_ints=[-1])
    live = op.Not(op.IsInf(x))
    n = op.ReduceSum(op.CastLike(live, x), last, keepdims=0)
    has_nan = op.ReduceMax(op.CastLike(op.IsNaN(x), x), last, keepdims=0)
    has_nan = op.Or(op.Cast(has_nan, to=9), op.Or(op.IsNaN(k), op.IsNaN(temperature)))
    open_ = op.And(op.Greater(k, _like(k, 0.0)), op.Less(k, n))

    anchor = _ranked(sort, op.Sub(op.Ceil(k), _like(k, 1.0)), open_)
    below = op.Sub(_ranked(sort, op.Floor(k), open_), anchor)
    reach = op.Mul(temperature, _like(temperature, temperatures))
    low, high = op.Sub(below, reach), reach
    x = op.Sub(op.Where(live, x, _wide(anchor)), _wide(anchor))
    for _ in range(HALVINGS + round(math.log2(temperatures / REACH))):
        middle = op.Mul(op.Add(low, high), _like(low, 0.5))
        z = op.Div(op.Sub(x, _wide(middle)), _wide(temperature))
        low, high = _halved(low, middle, high, op.Sub(_sum(tail, z, live, last), k))

    infinite = op.Where(op.LessOrEqual(k, _like(k, 0.0)), _like(k, math.inf), _like(k, -math.inf))
    hi = op.Where(has_nan, _like(k, math.nan), op.Where(open_, anchor, infinite))
    usable = op.And(open_, op.Not(has_nan))
    return hi, op.Where(usable, op.Mul(op.Add(low, high), _like(low, 0.5)), _like(k, 0.0))


def _price(
    x: TensorType,
    costs: TensorType,
    budget: TensorType,
    temperature: TensorType,
    alpha: Optional[TensorType] = None,  # noqa: UP045
    link: str = "logistic",
    number: Optional[float] = None,  # noqa: UP045
) -> Sequence[Any]:
    """Return θ as two numbers, x − θc − T·edge, and 1, found by bisection in float64."""
    tail, edge, most = _tail_of(link, number, alpha), _edge_of(link, number), reach_of(link, REACH)
    last, double = op.Constant(value_ints=[-1]), 11
    wide, cost, limit, t = (op.Cast(a, to=double) for a in (x, costs, budget, temperature))
    pays = op.And(op.Not(op.IsInf(wide)), op.Greater(cost, _like(cost, 0.0)))
    cost = op.Where(pays, cost, _like(cost, 0.0))
    has_nan = op.ReduceMax(op.CastLike(op.IsNaN(wide), limit), last, keepdims=0)
    has_nan = op.Or(op.Cast(has_nan, to=9), op.Or(op.IsNaN(limit), op.IsNaN(t)))
    none = op.LessOrEqual(limit, _like(limit, 0.0))
    every = op.GreaterOrEqual(limit, op.ReduceSum(cost, last, keepdims=0))

    scores = op.Sub(wide, op.Mul(_wide(t), _like(wide, edge)))
    reach, one = op.Mul(_wide(t), _like(t, most)), op.Where(pays, cost, _like(cost, 1.0))
    ends = (op.Div(op.Sub(scores, reach), one), op.Div(op.Add(scores, reach), one))
    low = op.ReduceMin(op.Where(pays, ends[0], _like(cost, 1e38)), last, keepdims=0)
    high = op.ReduceMax(op.Where(pays, ends[1], _like(cost, -1e38)), last, keepdims=0)
    inside = op.Where(pays, scores, _like(scores, 0.0))

    def excess(price: Any) -> Any:
        z = op.Div(op.Sub(inside, op.Mul(cost, _wide(price))), _wide(t))
        return op.Sub(_spent(tail, z, cost, last), limit)

    # A score of −1e30, or costs of very different sizes, make a bracket that no number of halvings
    # closes. The logarithm of a price, in temperatures, is halved first.
    low, high = _logarithm(op.Div(low, t)), _logarithm(op.Div(high, t))
    for _ in range(HALVINGS_OF_LOGARITHMS):
        middle = op.Mul(op.Add(low, high), _like(low, 0.5))
        low, high = _halved(low, middle, high, excess(op.Mul(_price_of(middle), t)))
    low, high = op.Mul(_price_of(low), t), op.Mul(_price_of(high), t)
    for _ in range(HALVINGS_OF_PRICES):
        middle = op.Mul(op.Add(low, high), _like(low, 0.5))
        low, high = _halved(low, middle, high, excess(middle))

    settled = op.Or(has_nan, op.Or(none, every))
    theta = op.Where(settled, _like(limit, 0.0), op.Mul(op.Add(low, high), _like(low, 0.5)))
    distance = op.Sub(scores, op.Mul(cost, _wide(theta)))
    infinite = op.Where(none, _like(budget, math.inf), _like(budget, -math.inf))
    first = op.CastLike(theta, budget)
    rest = op.CastLike(op.Sub(theta, op.Cast(first, to=double)), budget)
    hi = op.Where(has_nan, _like(budget, math.nan), op.Where(settled, infinite, first))
    ones = op.Add(op.Mul(first, _like(first, 0.0)), _like(first, 1.0))
    return hi, rest, op.CastLike(distance, x), ones


def _halved(low: Any, middle: Any, high: Any, excess: Any) -> tuple[Any, Any]:
    """Return the half of a bracket where ΣF, or the spent budget, is as wanted."""
    zero = _like(excess, 0.0)
    low = op.Where(op.Less(excess, zero), low, middle)
    return low, op.Where(op.Greater(excess, zero), high, middle)


def _logarithm(price: Any) -> TensorType:
    """Return ±log(1 + |price|)."""
    return op.Mul(op.Sign(price), op.Log(op.Add(op.Abs(price), _like(price, 1.0))))


def _price_of(logarithm: Any) -> TensorType:
    return op.Mul(op.Sign(logarithm), op.Sub(op.Exp(op.Abs(logarithm)), _like(logarithm, 1.0)))


def _spent(tail: Callable[[Any], tuple[Any, Any]], z: Any, cost: Any, last: Any) -> TensorType:
    """Return Σc·F, the costs of all weights above ½ plus terms that are small next to them."""
    upper, smaller = tail(z)
    part = op.Mul(cost, smaller)
    signed = op.Where(upper, op.Neg(part), part)
    whole = op.Where(upper, cost, _like(cost, 0.0))
    return op.Add(op.ReduceSum(whole, last, keepdims=0), op.ReduceSum(signed, last, keepdims=0))


def _edge_of(link: str, number: float | None) -> float:
    """Return where z is counted from, for a link with a number for alpha."""
    edge = by_id(link, number).edge
    assert isinstance(edge, (int, float))
    return float(edge)


def _temperature(
    x: TensorType,
    k: TensorType,
    target: TensorType,
    alpha: Optional[TensorType] = None,  # noqa: UP045
    link: str = "logistic",
    number: Optional[float] = None,  # noqa: UP045
    name: str = "support",
    per_row: bool = False,
) -> TensorType:
    raise ValueError(
        "temperature_for solves some sixty maps one after another and has no ONNX translation; "
        "find the temperature before the export and pass it as a number or an input"
    )


def _sort(
    self: TensorType, *, stable: bool = True, dim: int = -1, descending: bool = False
) -> Sequence[Any]:
    """Sort by ONNX's TopK, which is stable: it returns equal numbers in the order of indices."""
    size = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]), axis=0)
    return op.TopK(self, size, axis=dim, largest=int(descending), sorted=1)


def _where(condition: TensorType, self: TensorType, other: TensorType) -> TensorType:
    """Return a Where of booleans, which onnxruntime lacks."""
    if self.dtype is not None and self.dtype.name == "BOOL":
        return op.Or(op.And(condition, self), op.And(op.Not(condition), other))
    return op.Where(condition, self, other)


def _full(
    size: TensorType, fill_value: float, *, dtype: int = 1, layout: str = "", device: str = "",
    pin_memory: bool = False,
) -> TensorType:  # fmt: skip
    """Return a number in a shape; PyTorch's translation makes a float32 of it, ∞ beyond 1e38."""
    return op.Expand(_number(fill_value, dtype), op.Cast(size, to=7))


def _new_full(
    self: TensorType, size: TensorType, fill_value: float, *, dtype: int = -1, layout: str = "",
    device: str = "", pin_memory: bool = False,
) -> TensorType:  # fmt: skip
    number = _like(self, fill_value) if dtype == -1 else _number(fill_value, dtype)
    return op.Expand(number, op.Cast(size, to=7))


def _scalar_tensor(
    s: float, *, dtype: int = 1, layout: str = "", device: str = "", pin_memory: bool = False
) -> TensorType:
    return _number(s, dtype)


def _number(value: float, dtype: int = 11) -> TensorType:
    """Return a number as a float64, or a cast of that."""
    constant = op.Constant(value=onnx.helper.make_tensor("number", 11, [], [value]))
    return constant if dtype == 11 else op.Cast(constant, to=dtype)


def _frexp(self: TensorType) -> Sequence[Any]:
    """Return m in [½, 1), with the sign of x, and e, so that x = m·2^e; x and 0 of 0, ±inf, NaN."""
    size = op.Abs(self)
    usable = op.And(op.Greater(size, _like(self, 0.0)), op.Not(op.IsInf(self)))
    size, two = op.Where(usable, size, _like(self, 1.0)), _like(self, 2.0)
    e = op.Floor(op.Div(op.Log(size), _like(self, math.log(2))))
    for _ in range(2):  # rounding may leave it at a neighbour; 2^e alone may be beyond the dtype
        half = op.Floor(op.Mul(e, _like(self, 0.5)))
        m = op.Div(op.Div(size, op.Pow(two, half)), op.Pow(two, op.Sub(e, half)))
        over = op.CastLike(op.GreaterOrEqual(m, _like(self, 1.0)), self)
        e = op.Sub(op.Add(e, over), op.CastLike(op.Less(m, _like(self, 0.5)), self))
    half = op.Floor(op.Mul(e, _like(self, 0.5)))
    m = op.Div(op.Div(self, op.Pow(two, half)), op.Pow(two, op.Sub(e, half)))
    return op.Where(usable, m, self), op.Cast(op.Where(usable, e, _like(self, 0.0)), to=6)


def _atan(self: TensorType) -> TensorType:
    """Return atan; onnxruntime's is of float32 alone, so one of float64 takes a step from that."""
    if self.dtype is None or self.dtype.name != "DOUBLE":
        return op.Atan(self)
    start = op.CastLike(op.Atan(op.Cast(self, to=1)), self)
    quarter = op.Add(_like(self, math.pi / 2), _like(self, -4.371139e-08))  # of float32s, exact
    s, c = op.Sin(start), op.Sin(op.Add(start, quarter))
    step = op.Div(op.Sub(op.Mul(self, c), s), op.Add(op.Mul(self, s), c))
    return op.Where(op.IsInf(self), op.Mul(op.Sign(self), quarter), op.Add(start, step))


def _erfc(self: TensorType) -> TensorType:
    """Return erfc; the exporter's own is 1 − Erf, which is 0 from 4 on."""
    y = _erfc_above_0(op.Abs(self))
    return op.Where(op.Less(self, _like(self, 0.0)), op.Sub(_like(y, 2.0), y), y)


def _erfc_above_0(x: Any) -> TensorType:
    """e^{−x²}·t·P(t), t = 1/(1 + x/2): exact to 2e-8, to the exponential's rounding in float32."""
    t = op.Reciprocal(op.Add(op.Mul(x, _like(x, 0.5)), _like(x, 1.0)))
    series = _like(x, ERFC[-1])
    for coefficient in ERFC[-2::-1]:
        series = op.Add(op.Mul(series, t), _like(x, coefficient))
    return op.Mul(op.Mul(series, t), op.Exp(op.Neg(op.Mul(x, x))))


ERFC = (
    *(0.282094795, 0.282093754, 0.246884575, 0.175315976, 0.0934624343, -0.0592113574),
    *(0.132177043, -0.454973987, 0.49369493, -0.234733592, 0.0431954331),
)
"""A fit of erfc(x)·e^{x²}/t by a polynomial in t, at Chebyshev's points."""


def _tail_of(link: str, number: float | None, alpha: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Return the function z ↦ (F > ½, the smaller of F and 1 − F) of a built-in link."""
    if alpha is not None:
        raise ValueError("an alpha per row has no ONNX translation; export with a number for alpha")
    inner = by_id(link, number)
    kind = kind_of(inner)
    if kind is None and number is not None:
        kind = POWER  # compiled code would lose digits of the power; a Pow does not
    if kind is None and not isinstance(inner, ScalarLink):
        named = ", ".join(map(repr, table.TABLE))
        raise ValueError(
            f"the link {link!r} has no ONNX translation: its functions are Python, which the "
            f"exported program cannot call; use one of {named}, or a kofn.links.ScalarLink"
        )
    rise = 0.0 if number is None else number - 1
    known = inner.kinds[0] if isinstance(inner, ScalarLink) else KINDS[kind or 0].kind
    # Near α = 1 the end of the support is far away, and z is counted from elsewhere.
    moved = 1 / rise - 1 / number if number is not None and kind == POWER and number < NEAR_1 else 0
    written, entry = target(lambda name: getattr(op, name), _like, normal_tail=_normal_tail)
    formula = tail_in_words(known, written.words)
    compiled, wanted = written(formula), arguments_of(formula)

    def tail(z: Any) -> tuple[Any, Any]:
        y: Any = entry(lambda: op.Add(z, _like(z, moved)) if moved else z)
        exp, size = written.words["exp"], written.words["size"]
        a, b, per_b = written(apart)(y) if inner._infinite_tails else (exp(y - 1), 1.0, 1.0)
        given = {"a": a, "b": b, "per_b": per_b, "e": exp(-size(y)), "upper": y > 0}
        smaller, upper, *_ = compiled(*((given | {"z": y, "rise": rise})[each] for each in wanted))
        return upper.value, smaller.value

    return tail


def _normal_tail(z: Any) -> tuple[Any, Any]:
    """(1 − Φ, φ) at z ≥ 0; no weight needs φ."""
    half = type(z)(lambda: op.Mul(_erfc_above_0(_scaled(z.value)), _like(z.value, 0.5)))
    return half, half


def _scaled(z: Any) -> TensorType:
    return op.Mul(z, _like(z, math.sqrt(0.5)))


def _sum(tail: Callable[[Any], tuple[Any, Any]], z: Any, live: Any, last: Any) -> TensorType:
    """Return ΣF as a count and small terms, so that no large ones cancel."""
    upper, smaller = tail(z)
    upper = op.And(upper, live)
    signed = op.Where(live, op.Where(upper, op.Neg(smaller), smaller), _like(z, 0.0))
    count = op.ReduceSum(op.CastLike(upper, z), last, keepdims=0)
    return op.Add(count, op.ReduceSum(signed, last, keepdims=0))


def _sorted(x: Any) -> TensorType:
    values, _ = _sort(x, descending=True)
    return values


def _ranked(sort: Any, rank: Any, open_: Any) -> TensorType:
    """Return the score of this rank (from 0) in rows that have one; 0 elsewhere."""
    rank = op.Cast(op.Where(open_, rank, _like(rank, 0.0)), to=7)
    score = op.GatherElements(sort, _wide(rank), axis=-1)
    score = op.Squeeze(score, op.Constant(value_ints=[-1]))
    return op.Where(open_, score, _like(score, 0.0))


def _clipped(z: Any) -> TensorType:
    return op.Clip(z, _like(z, 0.0), _like(z, 1.0))


def _wide(per_row: Any) -> TensorType:
    return op.Unsqueeze(per_row, op.Constant(value_ints=[-1]))


def _like(x: Any, value: float) -> TensorType:
    return op.CastLike(_number(value), x)
