"""kofn.topk and quantile of JAX rows that lie on two devices: as on one.

XLA makes two devices of one processor only in a process that starts so: this file is its script.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import kofn
from places import as_program

X = np.random.default_rng(0).normal(size=(4, 12)).round(1)  # with ties
X[1, [3, 8]] = np.nan, -np.nan
X[2, :] = 0.0
X[3, [1, 2, 10, 11]] = np.inf, -np.inf, 0.0, -0.0
MASK = np.random.default_rng(1).random((4, 12)) < 0.6
MASK[0] = False
# Without float64, to treat them as floats would make equals of 2²⁴ and 2²⁴ + 1.
WHOLE = np.random.default_rng(2).integers(-3, 3, (4, 12)).astype(np.int32) + 2**24
Q = jnp.array([0.0, 0.3, 0.71, 1.0])

OF_FLOATS = {
    "largest": lambda x: kofn.topk(x, 5),
    "smallest": lambda x: kofn.topk(x, 5, largest=False),
    "all": lambda x: kofn.topk(x, x.shape[-1], largest=False),
    "masked": lambda x: kofn.topk(x, 5, mask=MASK[:, : x.shape[-1]]),
    "smallest masked": lambda x: kofn.topk(
        x, 5, largest=False, mask=jnp.asarray(MASK[:, : x.shape[-1]])
    ),
    "quantile": lambda x: kofn.quantile(x, Q, dim=-1),
    "without NaN": lambda x: kofn.quantile(x, Q, dim=-1, ignore_nan=True),
    "quantile masked": lambda x: kofn.quantile(x, Q, dim=-1, mask=MASK[:, : x.shape[-1]]),
    "smooth quantile": lambda x: kofn.quantile(x, 0.3, dim=-1, temperature=0.5),
    "of all": lambda x: kofn.quantile(x, 0.3, ignore_nan=True),
}
FUNCTIONS = OF_FLOATS | {
    "integers": lambda x: kofn.topk(whole_of(x), 5),
    "smallest integers": lambda x: kofn.topk(whole_of(x), 5, largest=False),
    "masked integers": lambda x: kofn.topk(whole_of(x), 5, mask=MASK[:, : x.shape[-1]]),
    "quantile of integers": lambda x: kofn.quantile(whole_of(x), Q, dim=-1),
    "quantile of masked integers": lambda x: kofn.quantile(
        whole_of(x), Q, dim=-1, mask=MASK[:, : x.shape[-1]]
    ),
    "subnormal": lambda x: kofn.topk(subnormal(x), 5),
    "hard subnormal": lambda x: kofn.hard_topk(subnormal(x), 5),
}


def whole_of(x):
    """Integers that lie as x does."""
    return WHOLE[:, : x.shape[-1]] + (0 * jnp.nan_to_num(x, posinf=0, neginf=0)).astype("int32")


def subnormal(x):
    """Numbers of which XLA takes each for 0; their bits lie as x does."""
    bits = whole_of(x) % 2**20
    return jax.lax.bitcast_convert_type(bits, "float32")


def uneven(f):
    """f of rows that two devices cannot have equal parts of."""
    return lambda x: f(x[:, :11])


def slope(f):
    def total(x):
        return sum((each**2).sum() for each in jax.tree.leaves(f(x)) if each.dtype.kind == "f")

    return jax.grad(total)


def same(found, wanted):
    pairs = zip(*map(jax.tree.leaves, (found, wanted)), strict=True)
    return all(a.dtype == b.dtype and np.allclose(a, b, 1e-5, 1e-6, True) for a, b in pairs)


def check(name, kind, spec):
    """Say what is wrong with a function of an array that is sharded in some way."""
    f, x = FUNCTIONS[name], jnp.asarray(X, "float32")
    cases = [(f, x)]
    if name in OF_FLOATS:
        cases.append((slope(f), jnp.nan_to_num(x, posinf=5, neginf=-5)))
    if kind == AxisType.Auto:  # an explicit mesh refuses such parts
        cases.append((uneven(f), x))
    mesh = jax.make_mesh((2,), ("a",), axis_types=(kind,))
    for number, (function, given) in enumerate(cases):
        wanted = jax.jit(function)(given)
        with jax.set_mesh(mesh):
            found = jax.jit(function)(jax.device_put(given, NamedSharding(mesh, spec)))
        if not same(found, wanted):
            print(name, kind, spec, "case", number, "is", found, "not", wanted)


def main(*names):
    for name in names:
        for kind in (AxisType.Auto, AxisType.Explicit):
            for spec in (P("a"), P(None, "a")):
                check(name, kind, spec)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="not in JAX before 0.7")
@pytest.mark.parametrize(
    "names",
    [("largest", "masked integers"), pytest.param(tuple(FUNCTIONS), marks=pytest.mark.full)],
    ids=["some", "all"],
)
def test_rows_on_two_devices_are_those_on_one(names):
    run = as_program(__file__, *names, devices=2, JAX_ENABLE_X64="0")
    assert run.stdout == "done\n", run.stdout[-3000:] + run.stderr[-2000:]
