"""Answers of a case in its framework: values, cotangents, tangents and second derivatives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import inputs
import jax
import jax.numpy as jnp
import numpy as np
import torch
from cases import Case
from operations import OPERATIONS

import kofn

Arrays = Sequence[Any]
Record = list[tuple[str, np.ndarray]]
"""Numbers of each answer with the name of their type."""

jax.config.update("jax_enable_x64", True)
torch.set_num_threads(1)

NAMES = {"k": "k", "t": "t", "x": "x", "c": "c", "b": "b", "a": "alpha"}


def answers(case: Case) -> Record:
    """Return what a case answers, in one process."""
    return recorded(RUN[case.framework](case))


def exact(case: Case) -> Record:
    """Return what array code in float64 answers to the same numbers."""
    os.environ["KOFN_KERNELS"] = "reference"
    try:
        wide = case._replace(framework="torch")
        return recorded(torch_answers(wide, given(wide, lambda v: of_torch(v, "float64"))))
    finally:
        del os.environ["KOFN_KERNELS"]


def recorded(found: Arrays) -> Record:
    """Read any arrays and numbers; half types as float32, which has all their numbers."""
    read = []
    for each in found:
        if isinstance(each, torch.Tensor):
            kind = str(each.dtype).removeprefix("torch.")
            each = each.detach().cpu()
            value = (each.float() if kind in ("bfloat16", "float16") else each).numpy()
        else:
            value = np.asarray(each)
            kind = str(value.dtype)
            value = value.astype(np.float32) if kind in ("bfloat16", "float16") else value
        read.append((kind, value))
    return read


class Given(SimpleNamespace):
    """A case's arguments, cut into those that are learned and the rest."""

    def function(self, on: Any = kofn) -> Callable[..., Any]:
        """Return the operation as a function of the learned arrays."""
        of, fixed, names = OPERATIONS[self.case.operation].of, self.fixed, list(self.learned)
        return lambda *arrays: of(
            on, SimpleNamespace(**fixed, **dict(zip(names, arrays, strict=True)))
        )

    def each_row(self, vmap: Callable) -> Callable[..., Any]:
        """Return the operation as a map over rows of the learned arrays."""
        of = OPERATIONS[self.case.operation].of
        arrays = {k: v for k, v in self.fixed.items() if k in inputs.PER_ROW and hasattr(v, "ndim")}
        others = {k: v for k, v in self.fixed.items() if k not in arrays}
        names = [*self.learned, *arrays]

        def row(*values: Any) -> Any:
            return of(kofn, SimpleNamespace(**others, **dict(zip(names, values, strict=True))))

        mapped = vmap(row)
        return lambda *learned: mapped(*learned, *arrays.values())


def given(case: Case, array: Callable[[np.ndarray], Any], **shards: Any) -> Given:
    """Return the arguments of a case as arrays of a framework."""
    found, turned = inputs.arguments(case), case.rows == "turned"
    for name, value in found.items():
        if isinstance(value, np.ndarray):
            found[name] = array(np.ascontiguousarray(value.T) if turned else value)
    wanted = [NAMES[initial] for initial in OPERATIONS[case.operation].learns]
    learned = {name: found.pop(name) for name in wanted if hasattr(found[name], "ndim")}
    fixed = dict(found, link=case.link, n=case.n, dim=0 if turned else -1, whole=array, shards={})
    return Given(case=case, learned=learned, fixed=fixed | shards, array=array)


def floating(found: Any) -> list[Any]:
    """Return the answers that may have derivatives."""
    found = found if isinstance(found, (tuple, list)) else [found]
    return [each for each in found if "float" in str(each.dtype)]


def listed(found: Any) -> Arrays:
    return list(found) if isinstance(found, (tuple, list)) else [found]


# --- NumPy and PyTorch


def of_numpy(value: np.ndarray, dtype: str) -> np.ndarray:
    return value.astype(dtype) if value.dtype == float else value


def of_torch(value: np.ndarray, dtype: str) -> torch.Tensor:
    found = torch.from_numpy(np.array(value))
    return found.to(getattr(torch, dtype)) if found.is_floating_point() else found


def numpy_answers(case: Case) -> Arrays:
    told = given(case, lambda v: of_numpy(v, case.dtype), rng=lambda: np.random.default_rng(0))
    with np.errstate(all="ignore"):
        return listed(told.function()(*told.learned.values()))


def torch_noise(seed: str, like: Arrays) -> list[torch.Tensor]:
    drawn = (inputs.noise(f"{seed} {i}", tuple(a.shape)) for i, a in enumerate(like))
    return [torch.from_numpy(v).to(a.dtype) for v, a in zip(drawn, like, strict=True)]


def torch_given(case: Case) -> Given:
    rng = lambda: torch.Generator().manual_seed(0)  # noqa: E731
    return given(case, lambda v: of_torch(v, case.dtype), rng=rng)


def torch_answers(case: Case, told: Given | None = None, f: Callable | None = None) -> Arrays:
    told = told or torch_given(case)
    f = f or told.function()
    return torch_order(f, list(told.learned.values()), case.order)


def torch_order(f: Callable, learned: Arrays, order: str, noise: Callable = torch_noise) -> Arrays:
    """Return the answers of one order; `noise` draws cotangents and tangents."""
    if order == "value":
        with torch.no_grad():
            return listed(f(*learned))
    if order == "jvp":
        forward = torch.autograd.forward_ad
        with forward.dual_level():
            duals = map(forward.make_dual, learned, noise("tangents", learned))
            tangents = [forward.unpack_dual(y).tangent for y in floating(f(*duals))]
            return [y for y in tangents if y is not None]
    leaves = [a.detach().clone().requires_grad_() for a in learned]
    how = dict(allow_unused=True, materialize_grads=True)
    ys = [y for y in floating(f(*leaves)) if y.requires_grad]
    vs = noise("cotangents", ys)
    if order == "vjp":
        return [*ys, *torch.autograd.grad(ys, leaves, vs, **how)]
    vs = [v.requires_grad_() for v in vs]
    first = torch.autograd.grad(ys, leaves, vs, create_graph=True, **how)
    moving = [g for g in first if g.requires_grad]
    second = torch.autograd.grad(moving, [*leaves, *vs], noise("second", moving), **how)
    return [*first, *second]


def func_answers(case: Case) -> Arrays:
    """By torch.func alone: transforms of a map over rows."""
    from torch.func import jvp, vjp, vmap

    told = torch_given(case)
    learned = tuple(told.learned.values())
    whole = OPERATIONS[case.operation].rows == ("rows",)
    f = told.function() if whole else told.each_row(vmap)
    if case.order == "value":
        return listed(f(*learned))

    def of(*arrays: Any) -> tuple:
        return tuple(floating(f(*arrays)))

    if case.order == "jvp":
        return listed(jvp(of, learned, tuple(torch_noise("tangents", learned)))[1])
    ys, back = vjp(of, *learned)
    vs = tuple(torch_noise("cotangents", ys))
    if case.order == "vjp":
        return [*ys, *back(vs)]
    first, back = vjp(lambda arrays, vs: vjp(of, *arrays)[1](vs), learned, vs)
    in_arrays, in_vs = back(tuple(torch_noise("second", first)))
    return [*first, *in_arrays, *in_vs]


def compiled_answers(case: Case) -> Arrays:
    torch._dynamo.reset()
    backend = "aot_eager" if case.framework == "compile" else "inductor"
    told = torch_given(case)
    return torch_answers(case, told, torch.compile(told.function(), backend=backend))


def kept_answers(case: Case) -> Arrays:
    """Return the bytes kept for the way back, which are counted once for each storage."""
    told, kept = torch_given(case), {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    leaves = [a.clone().requires_grad_() for a in told.learned.values()]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        answer = told.function()(*leaves)
    del answer
    return [np.array(sum(kept.values()))]


# --- JAX


def of_jax(value: np.ndarray, dtype: str) -> jax.Array:
    return jnp.asarray(value, dtype if value.dtype == float else None)


def jax_noise(seed: str, like: Arrays) -> tuple[jax.Array, ...]:
    drawn = (inputs.noise(f"{seed} {i}", a.shape) for i, a in enumerate(like))
    return tuple(jnp.asarray(v, a.dtype) for v, a in zip(drawn, like, strict=True))


def jax_answers(case: Case) -> Arrays:
    told = given(case, lambda v: of_jax(v, case.dtype), rng=lambda: jax.random.key(0))
    each = case.rows == "each"
    f = told.each_row(jax.vmap) if each else told.function()
    return jax_order(f, tuple(told.learned.values()), case.order, case.framework == "jit")


def jax_order(f: Callable, learned: tuple, order: str, jit: bool) -> Arrays:
    def of(*arrays: Any) -> tuple:
        return tuple(floating(f(*arrays)))

    def tangent(arrays: tuple, moved: tuple) -> tuple:
        return jax.jvp(of, arrays, moved)[1]

    def pulled(arrays: tuple, vs: tuple) -> tuple:
        ys, back = jax.vjp(of, *arrays)
        return ys, back(vs)

    def twice(arrays: tuple, vs: tuple, ws: tuple) -> tuple:
        first, back = jax.vjp(lambda arrays, vs: pulled(arrays, vs)[1], arrays, vs)
        return first, back(ws)

    wrap = jax.jit if jit else lambda f: f
    if order == "value":
        return listed(wrap(f)(*learned))
    if order == "jvp":
        return listed(wrap(tangent)(learned, jax_noise("tangents", learned)))
    vs = jax_noise("cotangents", jax.eval_shape(of, *learned))
    if order == "vjp":
        return jax.tree.leaves(wrap(pulled)(learned, vs))
    return jax.tree.leaves(wrap(twice)(learned, vs, jax_noise("second", learned)))


RUN: dict[str, Callable[[Case], Arrays]] = {
    "numpy": numpy_answers,
    "torch": torch_answers,
    "func": func_answers,
    "compile": compiled_answers,
    "inductor": compiled_answers,
    "kept": kept_answers,
    "jax": jax_answers,
    "jit": jax_answers,
}
