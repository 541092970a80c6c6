"""What tests share: the three frameworks as one object, links, and the tolerances."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from kofn import Link, soft_topk
from kofn.links import table
from kofn.links.symmetric import Symmetric

LINKS = tuple(table.TABLE)
"""The names of all links. Those below have a trait, which the link itself states: no test lists
links by hand (tests/package/test_package_listed.py), so that a new one meets every test of its
kind."""
INNER = {name: link.inner for name, link in table.TABLE.items()}  # as the solver sees them
SMOOTH = tuple(name for name in LINKS if INNER[name].smooth)
TWO_TAILS = tuple(name for name in LINKS if INNER[name]._infinite_tails)  # 0 < F < 1 everywhere
BOUNDED = tuple(name for name in LINKS if INNER[name].order)  # weights of exactly 0
SYMMETRIC = tuple(name for name in LINKS if isinstance(INNER[name], Symmetric))
ENDLESS = tuple(name for name in LINKS if name not in BOUNDED)  # F is 0 only by underflow
CAPPED = tuple(name for name in ENDLESS if name not in TWO_TAILS)  # and is 1 from an end on
ONE_OF_EACH = TWO_TAILS[0], CAPPED[0], BOUNDED[0]


def full_but(ordinary: Iterable[Any], every: Iterable[Any] = LINKS) -> list[Any]:
    """Parameters of a test: the ordinary run has some of them, the full run all."""
    full = pytest.mark.full
    return [pytest.param(one, marks=() if one in ordinary else full, id=str(one)) for one in every]


# Inductor writes C++, which a compiler takes ten seconds for. The ordinary run has it for the maps
# (adapters/test_adapters_transforms.py), for kernels and for k-subsets.
each_compiler = pytest.mark.parametrize(
    "backend", full_but(["aot_eager"], ["aot_eager", "inductor"])
)
every_link = pytest.mark.parametrize("link", LINKS)
with_gradients = pytest.mark.parametrize("name", ["torch", "jax"])

# What docs/behaviour.md promises, per dtype: weights against an oracle, Σp against k, and the norm
# of gradients.
WEIGHTS = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 8e-3, "float16": 1e-3}
TOTAL = {"float64": 1e-13, "float32": 1e-6, "bfloat16": 4e-3, "float16": 5e-4}
# What docs/behaviour.md derives for Σp, whatever the width of vectors: the promise leaves a margin.
TOTAL_BOUND = {"float64": 5e-14, "float32": 7.5 * 2.0**-24}
GRADIENT = {"float64": 1e-10, "float32": 1e-5}
GRADIENT_HARD = {"float64": 1e-8, "float32": 1e-4}  # |x/T| > 30, or a link whose slope jumps


def weight_tolerance(x: np.ndarray, temperature: float, dtype: str) -> float:
    """2e-6 up to |x/T| = 30, then what rounding of x/T costs (float32); 1e-12 in float64."""
    reach = float(np.max(np.abs(x))) / temperature
    rounding = {"float64": 2e-16, "float32": 6e-8}[dtype]
    return WEIGHTS[dtype] + rounding * max(0.0, reach - 30)


@dataclass(frozen=True)
class Framework:
    name: str

    def array(self, values: Any, dtype: str = "float64") -> Any:
        values = np.asarray(values)
        if self.name == "torch":
            return torch.tensor(values, dtype=getattr(torch, dtype))
        if self.name == "jax":
            return jnp.asarray(values, dtype=getattr(jnp, dtype))
        return values.astype(dtype)

    def numpy(self, array: Any) -> np.ndarray:
        if self.name == "torch":
            array = array.detach()
            return array.to(torch.float64).numpy() if array.is_floating_point() else array.numpy()
        array = np.asarray(array)
        return array if array.dtype.kind in "bi" else array.astype(np.float64)

    def is_kind(self, array: Any) -> bool:
        kinds = {"numpy": (np.ndarray, np.generic), "torch": torch.Tensor, "jax": jax.Array}
        return isinstance(array, kinds[self.name])

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def as_one(self, function: Any) -> Any:
        """The function; JAX compiles one program for it, in a fraction of the time of its steps."""
        return jax.jit(function) if self.name == "jax" else function

    def vjp(self, function: Any, arguments: tuple, cotangent: Any) -> list[np.ndarray]:
        """Cotangents of every argument; NumPy has no gradients."""
        if self.name == "torch":
            leaves = [a.clone().requires_grad_() for a in arguments]
            answers = torch.autograd.grad(
                function(*leaves), leaves, cotangent, allow_unused=True, materialize_grads=True
            )
        else:
            back = self.as_one(lambda cotangent, *given: jax.vjp(function, *given)[1](cotangent))
            answers = back(cotangent, *arguments)
        return [self.numpy(a) for a in answers]


def cauchy(framework: str) -> Link:
    """A user's link without a mean, written for one framework."""
    xp = {"numpy": np, "torch": torch, "jax": jnp}[framework]
    return Link(
        cdf=lambda z: xp.arctan2(xp.ones_like(z), -z) / math.pi,  # keeps the digits of a small F
        pdf=lambda z: 1 / (math.pi * (1 + z * z)),
    )


CAUCHY = {name: cauchy(name) for name in ("numpy", "torch", "jax")}


def soft_topk_gradients(
    framework, x, k=2.0, temperature=0.7, *, link="logistic", v=None, mask=None
):
    """Cotangents of soft_topk in scores, k and T, for a random cotangent v."""
    x = np.asarray(x, float)
    v = np.random.default_rng(3).standard_normal(x.shape) if v is None else v
    batch = x.shape[:-1]
    arguments = [
        framework.array(a) for a in (x, np.broadcast_to(k, batch), np.full(batch, temperature))
    ]
    return framework.vjp(
        lambda x, k, t: soft_topk(x, k, link=link, temperature=t, mask=mask),
        tuple(arguments),
        framework.array(v),
    )


@contextlib.contextmanager
def jax_x64(on: bool) -> Iterator[None]:
    """JAX with float64, or as its users have it by default: without."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", on)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def single(*values):
    """As float32 tensors."""
    return tuple(torch.tensor(np.asarray(v), dtype=torch.float32) for v in values)


def double(*values):
    return tuple(v.double() for v in values)


class Segments:
    """Ragged rows as segments of one long axis, in any order: row `ids[i]` has entry i.

    As strict as the contract: what is not `sum` or `expand` refuses to be differentiated.
    """

    def __init__(self, ids, rows):
        self.ids, self.rows = ids, rows

    def min(self, values):
        return self._reduced(values, "min", math.inf)

    def max(self, values):
        return self._reduced(values, "max", -math.inf)

    def sum(self, values):
        if isinstance(values, np.ndarray):
            return self._reduced(values, "add", 0)
        if isinstance(values, jax.Array):
            return jax.ops.segment_sum(values, self.ids, self.rows)
        return values.new_zeros(self.rows).index_add(0, self.ids, values)

    def count(self, flags):
        return self.sum(flags.long() if isinstance(flags, torch.Tensor) else flags.astype(int))

    def any(self, flags):
        return self.count(flags) > 0

    def expand(self, per_row):
        assert per_row.shape == (self.rows,)
        return per_row[self.ids]

    def _reduced(self, values, how, empty):
        assert values.shape == self.ids.shape
        if isinstance(values, np.ndarray):
            found = np.full(self.rows, empty, values.dtype)
            getattr(np, {"min": "minimum", "max": "maximum"}.get(how, how)).at(
                found, self.ids, values
            )
            return found
        if isinstance(values, jax.Array):
            return _constant(getattr(jax.ops, f"segment_{how}"), values, self.ids, self.rows)
        assert not values.requires_grad
        found = values.new_full((self.rows,), empty)
        return found.scatter_reduce(0, self.ids, values, f"a{how}")


jax.tree_util.register_pytree_node(
    Segments, lambda over: ((over.ids,), over.rows), lambda rows, ids: Segments(*ids, rows)
)


@partial(jax.custom_jvp, nondiff_argnums=(0, 3))
def _constant(function, values, ids, rows):
    return function(values, ids, rows)


@_constant.defjvp
def _(function, rows, primals, tangents):
    raise AssertionError("a reduction without a derivative was differentiated")


def names_of(node):
    """The names of the functions behind an answer."""
    before = () if node is None else node.next_functions
    return type(node).__name__ + "".join(names_of(each) for each, _ in before)
