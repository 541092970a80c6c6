"""JAX's meshes of devices and exported programs, which ask more of types than jit does.

XLA makes eight devices of one processor only in a process that starts so: this file is its script.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import kofn
from kofn import losses
from places import as_program

X = np.random.default_rng(0).standard_normal((8, 5))
C = np.random.default_rng(1).standard_normal((8, 5))


def labels(x):
    return jnp.zeros_like(x[..., 0], dtype=int)


FUNCTIONS = {
    "soft_topk": lambda x: kofn.soft_topk(x, 2.5),
    "learned k": lambda x: kofn.soft_topk(x, 1 + jax.nn.sigmoid(x[..., 0]), link="exponential"),
    "hard": lambda x: kofn.soft_topk(x, 2, hard=True),
    "gates": lambda x: kofn.topk_gates(x, 2)[0],
    "threshold": lambda x: kofn.soft_topk_threshold(x, 2),
    "sum": lambda x: kofn.soft_topk_sum(x, 2),
    "log_soft_topk": lambda x: kofn.log_soft_topk(x, 2),
    "softmax": kofn.softmax,
    "sparsemax": kofn.sparsemax,
    "entmax": kofn.entmax,
    "entmax 1.3": lambda x: kofn.entmax(x, 1.3),
    "fenchel_young_loss": lambda x: kofn.fenchel_young_loss(
        x, kofn.hard_topk(x, 2), link="logistic", reduction="none"
    ),
    "softmax_loss": lambda x: losses.softmax_loss(x, labels(x), reduction="none"),
    "topk_cross_entropy": lambda x: losses.topk_cross_entropy(x, labels(x), 2, reduction="none"),
    "KSubset.marginals": lambda x: kofn.KSubset(x, 2).marginals(),
    "KSubset.log_partition": lambda x: kofn.KSubset(x, 2).log_partition(),
}


ORDINARY = ("soft_topk", "hard")


def close(a, b):
    return np.allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-11)


def pulled(f):
    """The gradient of a random sum of f's rows."""

    def total(x, c):
        y = f(x)
        return (y * (c[..., : y.shape[-1]] if y.ndim == c.ndim else c[..., 0])).sum()

    return jax.grad(total)


def under_shard_map(f):
    mesh = jax.make_mesh((8,), ("rows",), axis_types=(AxisType.Auto,))
    value = jax.shard_map(f, mesh=mesh, in_specs=P("rows"), out_specs=P("rows"))
    slope = jax.shard_map(pulled(f), mesh=mesh, in_specs=P("rows"), out_specs=P("rows"))
    return close(jax.jit(value)(X), f(X)) and close(jax.jit(slope)(X, C), pulled(f)(X, C))


def on_explicit_axes(f):
    mesh = jax.make_mesh((8,), ("rows",), axis_types=(AxisType.Explicit,))
    x, c = (jax.device_put(a, NamedSharding(mesh, P("rows"))) for a in (X, C))
    with jax.set_mesh(mesh):
        value, slope = jax.jit(f)(x), jax.jit(pulled(f))(x, c)
    spread = value.sharding.spec[0] == "rows"
    return spread and close(value, f(X)) and close(slope, pulled(f)(X, C))


def under_jit(f):
    """Rows spread over devices stay there, without a gather; the array code serves them."""
    mesh = jax.make_mesh((8,), ("rows",), axis_types=(AxisType.Auto,))
    place = NamedSharding(mesh, P("rows"))
    x, c = (jax.device_put(a, place) for a in (X, C))
    for function, arrays in ((f, (x,)), (pulled(f), (x, c))):
        program = jax.jit(function).lower(*arrays).compile()
        answer = program(*arrays)
        if "all-gather" in program.as_text() or not close(
            answer, function(*map(jnp.asarray, (X, C)[: len(arrays)]))
        ):
            return False
        if not answer.sharding.is_equivalent_to(place, answer.ndim):
            return False
    return True


def where_no_mesh_is_set():
    """Say which functions fail on an explicit mesh that arrays alone know of."""
    mesh = jax.make_mesh((8,), ("devices",), axis_types=(AxisType.Explicit,))
    whole, in_shards = P("devices"), P(None, "devices")
    x, y, c = X, X.T, C[0]

    def weighted(x, labels):
        return losses.softmax_loss(x, labels, weight=jnp.asarray(c), reduction="none")

    for name, f, *pairs in (
        ("taken entries", lambda y: kofn.topk(y, 2).values, (y, in_shards)),
        ("taken weights", weighted, (x, whole), (labels(x), whole)),
        ("all entries", lambda y: kofn.quantile(y, 0.3), (y, in_shards)),
    ):
        arrays = [jnp.asarray(each) for each, _ in pairs]
        placed = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in pairs]
        print(name, "right" if close(jax.jit(f)(*placed), f(*arrays)) else "wrong", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    if sys.argv[1:] == ["no mesh set"]:
        where_no_mesh_is_set()
        sys.exit()
    for name in sys.argv[1:]:
        f = FUNCTIONS[name]
        X, C = jnp.asarray(X), jnp.asarray(C)
        print(name, "shard_map" if under_shard_map(f) else "wrong under shard_map")
        print(name, "explicit" if on_explicit_axes(f) else "wrong on explicit axes")
        print(name, "jit" if under_jit(f) else "gathered or wrong under jit", flush=True)


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="in jax.experimental before 0.6")
@pytest.mark.parametrize(
    "names",
    [["soft_topk"], pytest.param([*FUNCTIONS][1:], marks=pytest.mark.full)],
    ids=["soft_topk", "others"],
)
def test_rows_spread_over_devices(names):
    run = as_program(__file__, *names, devices=8)
    wanted = [f"{name} {where}" for name in names for where in ("shard_map", "explicit", "jit")]
    assert run.stdout.splitlines() == wanted, run.stderr


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="no explicit meshes before 0.6")
def test_arrays_know_their_mesh():
    run = as_program(__file__, "no mesh set", devices=8)
    wanted = [f"{name} right" for name in ("taken entries", "taken weights", "all entries")]
    assert run.stdout.splitlines() == wanted, run.stderr


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(n, sizes, marks=() if (n, sizes) == ("hard", "b, 5") else pytest.mark.full)
        for n in FUNCTIONS
        for sizes in ("b, 5", "b, n")
    ],
)
def test_sizes_may_be_symbolic_in_an_exported_program(name, shape):
    from jax import export

    f = FUNCTIONS[name]
    both = jax.jit(lambda x, c: (f(x), pulled(f)(x, c)))
    sizes = export.symbolic_shape(shape, constraints=["n >= 3"] if "n" in shape else [])
    spec = jax.ShapeDtypeStruct(sizes, jnp.float64)
    program = export.export(both)(spec, spec)
    for count in (8, 3):
        x, c = jnp.asarray(X[:count]), jnp.asarray(C[:count])
        assert all(map(close, program.call(x, c), both(x, c)))
