"""Every public function under torch.compile: arguments as numbers, inputs and parameters.

Sizes are fixed, symbols, or become symbols with a second shape. Answers and gradients are compared
with eager code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

import kofn
from kofn import classic, links, losses, metrics
from support import LINKS

HEADS, N, ROWS = 3, 8, 6
"""Heads and entries of rows; the segments of ROWS entries cut the heads of two batches."""


class Per(NamedTuple):
    """An argument: its number, and the least and greatest of its tensor, one for each …"""

    what: str  # row, entry, class, segment or column; "" for numbers alone
    number: Any
    low: float = 0.0
    high: float = 0.0


K, T, ALPHA = Per("row", 2.0, 1.5, 3.0), Per("row", 0.7, 0.5, 2.0), Per("row", 1.3, 1.2, 1.9)
COST, MASK, CLASS = Per("entry", None, 0.5, 2.0), Per("mask", None), Per("class", None, 0.5, 2.0)
EACH_K, EACH_T = Per("segment", 1.0, 0.5, 2.0), Per("segment", 0.7, 0.5, 2.0)
EACH_ALPHA = Per("segment", 1.3, 1.2, 1.9)


def number(value):
    return Per("", value)


def labels(x):
    return x.detach().argmin(-1)


def several(x):
    return (x.detach() > 0.3).to(x.dtype)


def costs_of(x, costs):
    return torch.linspace(0.5, 2.0, x.shape[-1]).expand(x.shape) if costs is None else costs


def by_link(name, link):
    function = getattr(kofn, name)
    return lambda x, k, t: function(x, k, link=link, temperature=t)


def by_alpha(name):
    function = getattr(kofn, name)
    return lambda x, k, t, a: function(x, k, link=links.entmax(a), temperature=t)


def masked(name):
    function = getattr(kofn, name)
    return lambda x, t, m: function(x, temperature=t, mask=m)


def knapsack(name, **options):
    function = getattr(kofn, name)
    return lambda x, c, b, t, m: function(x, costs_of(x, c), b, temperature=t, mask=m, **options)


def ragged(name):
    function = getattr(kofn, name)

    def of(x, *arguments):
        *k, t = arguments
        ptr = torch.arange(0, x.numel() + 1, ROWS)
        return function(x.reshape(-1), *k, ptr=ptr, temperature=t)

    return of


def lost(name, target=labels, **options):
    function = getattr(losses, name)
    return lambda x, t, w: function(x, target(x), temperature=t, weight=w, **options)


MAPS = {
    **{f"soft_topk, {link}": (by_link("soft_topk", link), (K, T)) for link in LINKS},
    **{
        f"{name}, {link}": (by_link(name, link), (K, T))
        for name in ("soft_topk_threshold", "soft_topk_sum", "log_soft_topk")
        for link in ("logistic", "exponential")
    },
    **{
        f"{name}, alpha": (by_alpha(name), (K, T, ALPHA))
        for name in ("soft_topk", "soft_topk_threshold")
    },
    "hard": (lambda x, k, t: kofn.soft_topk(x, k, temperature=t, hard=True), (K, T)),
    "integer": (lambda x, k: kofn.soft_topk(x, k), (number(2),)),
    "mask": (lambda x, k, t, m: kofn.soft_topk(x, k, temperature=t, mask=m), (K, T, MASK)),
    "dim": (
        lambda x, k, t: kofn.soft_topk(x, k, temperature=t, dim=1),
        (number(1), Per("column", 0.7, 0.5, 2.0)),
    ),
    "hard_topk": (lambda x, k, m: kofn.hard_topk(x, k, mask=m) * x, (K, MASK)),
    "topk_gates": (lambda x, t, m: kofn.topk_gates(x, 2, temperature=t, mask=m)[0], (T, MASK)),
    "topk_gates, k": (lambda x, k: kofn.topk_gates(x, k, normalize=True)[0], (number(2),)),
    "topk_gates, bias": (lambda x, b: kofn.topk_gates(x, 2, bias=b)[0], (CLASS,)),
    **{name: (masked(name), (T, MASK)) for name in ("softmax", "sparsemax", "taylor_softmax")},
    "softmax, weights": (
        lambda x, t, w: kofn.softmax(x, temperature=t, weights=costs_of(x, w)),
        (T, COST),
    ),
    "entmax": (lambda x, a, t, m: kofn.entmax(x, a, temperature=t, mask=m), (ALPHA, T, MASK)),
    "log_entmax": (lambda x, a, t: kofn.log_entmax(x, a, temperature=t), (ALPHA, T)),
    "sparse_softmax, k": (
        lambda x, k, t: kofn.sparse_softmax(x, k=k, temperature=t),
        (number(3), T),
    ),
    "sparse_softmax, p": (
        lambda x, p, t: kofn.sparse_softmax(x, p=p, temperature=t),
        (number(0.8), T),
    ),
    "perturbed_argmax": (lambda x, t: kofn.perturbed_argmax(x, temperature=t), (T,)),
    "soft_knapsack": (knapsack("soft_knapsack"), (COST, K, T, MASK)),
    "soft_knapsack, hard": (knapsack("soft_knapsack", hard=True), (COST, K, T, MASK)),
    "soft_knapsack_threshold": (knapsack("soft_knapsack_threshold"), (COST, K, T, MASK)),
    "soft_knapsack_value": (knapsack("soft_knapsack_value"), (COST, K, T, MASK)),
    "segment_soft_topk": (ragged("segment_soft_topk"), (EACH_K, EACH_T)),
    "segment_soft_topk_threshold": (ragged("segment_soft_topk_threshold"), (EACH_K, EACH_T)),
    "segment_soft_topk_sum": (ragged("segment_soft_topk_sum"), (EACH_K, EACH_T)),
    "segment_softmax": (ragged("segment_softmax"), (EACH_T,)),
    "segment_sparsemax": (ragged("segment_sparsemax"), (EACH_T,)),
    "segment_entmax": (ragged("segment_entmax"), (EACH_ALPHA, EACH_T)),
    "segment_soft_topk, columns": (
        lambda x, k: kofn.segment_soft_topk(
            x.reshape(-1, N), k, ptr=torch.arange(0, x.shape[0] * HEADS + 1, HEADS)
        ),
        (Per("table", 1.0, 0.5, 2.0),),
    ),
    "segment_hard_topk": (
        lambda x, k: (
            kofn.segment_hard_topk(x.reshape(-1), k, ptr=torch.arange(0, x.numel() + 1, ROWS))
            * x.reshape(-1)
        ),
        (EACH_K,),
    ),
    **{
        f"classic.{name}": (
            lambda x, k, t, name=name: getattr(classic, name)(x, k, temperature=t),
            (number(2), T),
        )
        for name in ("iterative_soft_topk", "ones_and_softmax", "weighted_soft_topk")
    },
}

LOSSES = {
    **{
        f"{name}, {target.__name__}": (lost(name, target, **options), (T, CLASS))
        for name, options in {
            "softmax_loss": {},
            "sparsemax_loss": {},
            "topk_loss": {},
            "accuracy_loss": {},
            "epsilon_cross_entropy": {},
            "sparse_softmax_loss": dict(k=4),
            "topk_cross_entropy": dict(k=3),
        }.items()
        for target in (labels, several)
    },
    "softmax_loss, smoothed": (lost("softmax_loss", label_smoothing=0.1), (T, CLASS)),
    "topk_loss, smoothed": (lost("topk_loss", label_smoothing=0.1), (T, CLASS)),
    "entmax_loss": (
        lambda x, a, t: losses.entmax_loss(x, labels(x), a, temperature=t),
        (ALPHA, T),
    ),
    **{
        f"fenchel_young_loss, {link}": (
            lambda x, t, link=link: kofn.fenchel_young_loss(
                x, torch.softmax(-x.detach(), -1), link=link, temperature=t, reduction="none"
            ),
            (T,),
        )
        for link in ("exponential", "logistic")
    },
    "am_softmax": (lambda x, t: losses.am_softmax(x.tanh(), labels(x), temperature=t)[0], (T,)),
    "arcface": (
        lambda x, m: losses.arcface(x.tanh(), labels(x), margin=m)[0],
        (number(0.3),),
    ),
    "segment_topk_loss": (
        lambda x, t: losses.segment_topk_loss(
            x.reshape(-1),
            several(x).reshape(-1),
            ptr=torch.arange(0, x.numel() + 1, ROWS),
            temperature=t,
        ),
        (EACH_T,),
    ),
}

OTHERS = {
    **{
        f"KSubset.{name}": (
            lambda x, k, name=name: getattr(kofn.KSubset(x, k), name)(),
            (number(3),),
        )
        for name in ("marginals", "entropy", "log_partition")
    },
    "KSubset, mask": (lambda x, m: kofn.KSubset(x, 2, mask=m).marginals(), (MASK,)),
    "Categorical": (lambda x, m: kofn.Categorical(x, mask=m).marginals(), (MASK,)),
    "Bernoulli": (lambda x: kofn.Bernoulli(x).entropy(), ()),
    "RelaxedOneHot": (
        lambda x, t: kofn.RelaxedOneHot(x, t).log_prob(torch.softmax(x.detach(), -1)),
        (T,),
    ),
    "temperature_for": (
        lambda x, k: kofn.temperature_for(x, k, support=5.0, per_row=True)[..., None] * x,
        (K,),
    ),
    "metrics.entropy": (lambda x, m: metrics.entropy(x.softmax(-1), mask=m), (MASK,)),
    "metrics.hard_gap": (lambda x, k: metrics.hard_gap(x.sigmoid(), k), (number(2),)),
    "metrics.jacobian_norm": (
        lambda x, k, t: metrics.jacobian_norm(x, k, temperature=t)[..., None] * x,
        (K, T),
    ),
}
CASES = MAPS | LOSSES | OTHERS
QUICK = {
    "number": ("integer", "KSubset.marginals"),
    "tensor": ("soft_topk, logistic", "dim", "soft_knapsack", "segment_soft_topk, columns"),
    "parameter": ("soft_topk, alpha", "mask", "topk_gates, bias", "topk_loss, several"),
}
"""What runs in seconds; the rest is the full grid."""


def value_of(argument: Per, kind: str, batch: int) -> Any:
    """An argument for scores of shape (batch, HEADS, N); a parameter is for any batch."""
    if argument.what == "" or kind == "number":
        return argument.number
    shared, rows = kind == "parameter", batch * HEADS
    shape = {
        "row": (HEADS,) if shared else (batch, HEADS),
        "entry": (N,) if shared else (batch, HEADS, N),
        "mask": (N,) if shared else (batch, HEADS, N),
        "class": (N,),
        "segment": () if shared else (rows * N // ROWS,),
        "column": (N,) if shared else (batch, N),
        "table": () if shared else (batch, N),
    }[argument.what]
    if argument.what == "mask":
        mask = torch.ones(shape, dtype=torch.bool)
        mask[..., 1] = False
        return mask
    size = torch.Size(shape).numel()
    return torch.linspace(argument.low, argument.high, size).reshape(shape)


class Module(torch.nn.Module):
    """A function whose arguments are learned, or buffers."""

    def __init__(self, function: Any, values: list[Any]) -> None:
        super().__init__()
        self.function, self.names = function, [f"argument_{i}" for i in range(len(values))]
        for name, value in zip(self.names, values, strict=True):
            learned = isinstance(value, torch.Tensor) and value.is_floating_point()
            setattr(self, name, torch.nn.Parameter(value) if learned else value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *(getattr(self, name) for name in self.names))


def outcome(call: Any, x: torch.Tensor, values: list[Any]) -> list[torch.Tensor]:
    """The answer of call(x, *values), and the gradients of a weighted sum of it."""
    leaves = [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]
    leaves = [leaf.requires_grad_() for leaf in (x.clone(), *leaves)]
    answer = call(leaves[0], *values)
    weights = torch.linspace(-1, 1, answer.numel()).reshape(answer.shape)
    total = (answer.nan_to_num(posinf=0.0, neginf=0.0) * weights).sum()
    slopes = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [answer.detach(), *slopes]


def grid():
    """Every kind of argument with symbols; what sizes do beyond that, with the most general."""
    for kind in QUICK:
        for sizes in ("dynamic", "automatic", "fixed") if kind == "tensor" else ("dynamic",):
            for case in CASES:
                quick = case in QUICK[kind] and sizes == "dynamic"
                yield pytest.param(case, kind, sizes, marks=() if quick else pytest.mark.full)


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("case", "kind", "sizes"), list(grid()))
def test_compiled_is_eager(case, kind, sizes):
    function, arguments = CASES[case]
    call: Any = function
    learned = None
    if kind == "parameter":
        learned = [value_of(argument, kind, 0) for argument in arguments]
        call = module = Module(function, learned)
        learned = list(module.parameters())
    dynamic = {"dynamic": True, "automatic": None, "fixed": False}[sizes]
    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for batch in (4,) if sizes == "fixed" else (4, 6, 8):
        x = torch.randn(batch, HEADS, N, generator=torch.Generator().manual_seed(batch))
        if learned is None:
            values = [value_of(argument, kind, batch) for argument in arguments]
            found = [outcome(one, x, values) for one in (function, compiled)]
        else:
            found = [outcome(lambda x, *_, one=one: one(x), x, learned) for one in (call, compiled)]
        for wanted, got in zip(*found, strict=True):
            torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-4, equal_nan=True)
