"""Losses and logarithms in compiled JAX programs on a CPU: those of PyTorch, by the same kernels.

XLA makes eight devices of one processor only in a process that starts so: this file is its script.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import kofn
from kofn import losses
from places import as_program
from support import LINKS

NAME = "kofn_rows"  # how XLA knows the kernels
full = pytest.mark.full
RNG = np.random.default_rng(0)

X = RNG.standard_normal((6, 40))
SPECIAL = X.copy()
SPECIAL[0, 1], SPECIAL[1, 2], SPECIAL[3, 3] = -math.inf, math.inf, math.nan
SPECIAL[4], SPECIAL[5] = -math.inf, -3e38
ROWS = {"plain": X, "special": SPECIAL, "hard": 1e4 * X}
T = np.array([1.0, 0.5, 2, 1, 1, 1])
LABELS = RNG.integers(0, 40, 6)
LABELS[2] = -100
HOT = (RNG.random((6, 40)) < 0.1).astype(float)
SOFT = 0.2 * RNG.random((6, 40))
OPTIONS = dict(reduction="none")


def like(x, array):
    return torch.tensor(array) if isinstance(x, torch.Tensor) else jnp.asarray(array)


def of_labels(loss, **options):
    return lambda x, t: loss(x, like(x, LABELS), temperature=t, **OPTIONS, **options)


def of_weights(target, link):
    return lambda x, t: losses.topk_loss(x, like(x, target), link=link, temperature=t, **OPTIONS)


def logarithms(link):
    """The sum of all logarithms that are finite; with 1e4 times the scores, no slope is left."""

    def total(x, t):
        found = kofn.log_soft_topk(x, 3, link=link, temperature=t)
        where = torch.where if isinstance(x, torch.Tensor) else jnp.where
        return where(abs(found) < math.inf, found, 0.0).sum(-1)

    return total


FUNCTIONS = {
    "softmax_loss": of_labels(losses.softmax_loss),
    "sparsemax_loss": of_labels(losses.sparsemax_loss),
    "entmax_loss": of_labels(losses.entmax_loss),
    "smoothed": of_labels(losses.entmax_loss, label_smoothing=0.1),
    **{f"hot {link}": of_weights(HOT, link) for link in LINKS},
    **{f"soft {link}": of_weights(SOFT, link) for link in LINKS},
    **{f"log {link}": logarithms(link) for link in LINKS},
}
QUICK = {"softmax_loss", "entmax_loss", "hot logistic", "soft normal", "log normal", "log logistic"}


def text(function, *arrays):
    return jax.jit(function).lower(*arrays).as_text()


def summed(function, where):
    """A random sum of the finite losses of rows."""
    c = np.random.default_rng(1).standard_normal(6)

    def total(x, t):
        y = function(x, t)
        return (where(abs(y) < math.inf, y, 0.0) * like(x, c)).sum()

    return total


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=full) for name in FUNCTIONS]
)
def test_values_and_gradients_are_those_of_pytorch(name, rows):
    function, x = FUNCTIONS[name], ROWS[rows]
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, T)]
    wanted = function(*tensors)
    summed(function, torch.where)(*tensors).backward()
    gradient = jax.jit(jax.grad(summed(function, jnp.where), argnums=(0, 1)))
    # One call is for θ and the weights, another for the rest.
    assert text(function, x, T).count(NAME) == 2
    assert gradient.lower(x, T).as_text().count(NAME) >= 2
    found = jax.jit(function)(x, T), *gradient(x, T)
    for a, b in zip(found, (wanted, *(tensor.grad for tensor in tensors)), strict=True):
        assert np.allclose(a, b.detach(), rtol=1e-11, atol=1e-12, equal_nan=True)


def test_logarithms_are_those_of_the_eager_kernels_bit_for_bit():
    for x in (X.astype("f"), RNG.standard_normal((5, 300))):
        found = jax.jit(lambda x: kofn.log_soft_topk(x, 3))(x)
        assert np.array_equal(found, kofn.log_soft_topk(torch.tensor(x), 3))


def test_labels_may_have_32_bits():
    labels = jnp.asarray(LABELS, jnp.int32)
    loss = jax.jit(losses.entmax_loss)(X, labels)
    assert loss == pytest.approx(losses.entmax_loss(X, LABELS))


# --- transforms ---

SMALL, C = (jnp.asarray(np.random.default_rng(s).standard_normal((3, 5))) for s in (2, 3))
SIGNS = jnp.asarray([1.0, -0.5, 2.0])
MOVING = {
    "logarithms": lambda x: (kofn.log_soft_topk(x, 2, temperature=1 + x[:, 0] ** 2) * C).sum(),
    "logarithms, k": lambda x: (kofn.log_soft_topk(x, 1 + jax.nn.sigmoid(x[:, 0])) * C).sum(),
    "weights": lambda x: (
        losses.topk_loss(x, kofn.hard_topk(C, 2), temperature=1 + x[:, 0] ** 2, **OPTIONS) * SIGNS
    ).sum(),
    "labels": lambda x: (
        losses.entmax_loss(x, jnp.asarray([1, 2, 4]), temperature=1 + x[:, 0] ** 2, **OPTIONS)
        * SIGNS
    ).sum(),
    "likelihoods": lambda x: (
        losses.softmax_loss(x, jnp.asarray([1, 2, 4]), temperature=1 + x[:, 0] ** 2, **OPTIONS)
        * SIGNS
    ).sum(),
}
OF_ROWS = {
    "logarithms": lambda x: (kofn.log_soft_topk(x, 2) ** 2).sum(),
    "weights": lambda x: losses.topk_loss(x, kofn.hard_topk(C[0], 2)) ** 2,
    "likelihoods": lambda x: losses.softmax_loss(x, jnp.asarray(3)) ** 2,
}


def descent(f):
    def step(x, _):
        return x - 0.1 * jax.grad(f)(x), f(x)

    return lambda x: jax.lax.scan(step, x, None, length=3)[1].sum()


TRANSFORMS = {
    "gradient": lambda f: jax.jit(jax.grad(f)),
    "without jit": jax.grad,
    "jvp": lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (C,))),
    "hessian": lambda f: jax.jit(jax.hessian(f)),
    "jacrev of jacrev": lambda f: jax.jit(jax.jacrev(jax.jacrev(f))),
    "scan": lambda f: jax.jit(jax.grad(descent(f))),
    "checkpoint": lambda f: jax.jit(jax.grad(jax.checkpoint(f))),
}
MAPPED = {
    "vmap": lambda f: jax.jit(jax.vmap(f)),
    "vmap along an axis": lambda f: lambda x: jax.vmap(f, in_axes=1)(x.T),
    "vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(f))),
    "grad of vmap": lambda f: jax.jit(jax.grad(lambda x: jax.vmap(f)(x).sum())),
    "vmap of hessian": lambda f: jax.jit(jax.vmap(jax.hessian(f))),
}
CASES = [(t, f) for t in TRANSFORMS for f in MOVING] + [(t, f) for t in MAPPED for f in OF_ROWS]
OFTEN = {("gradient", "logarithms, k"), ("vmap of grad", "weights")}


@pytest.mark.parametrize(
    ("transform", "function"),
    [case if case in OFTEN else pytest.param(*case, marks=full) for case in CASES],
)
def test_transforms_are_those_of_the_array_code(transform, function, monkeypatch):
    whole = transform in TRANSFORMS
    moved = (TRANSFORMS if whole else MAPPED)[transform]((MOVING if whole else OF_ROWS)[function])
    found = moved(SMALL)
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    jax.clear_caches()
    wanted = moved(SMALL)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.allclose(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("alpha", [1.3, pytest.param(1.7, marks=full)])
def test_kernels_serve_any_alpha_that_is_a_number(alpha):
    function = jax.jit(lambda x: kofn.entmax(x, alpha))
    assert NAME in text(function, X)
    assert np.array_equal(function(X), kofn.entmax(torch.tensor(X), alpha))


def test_exported_programs_and_other_platforms_get_array_code():
    for name in ("softmax_loss", "hot logistic", "log logistic"):
        function = jax.jit(jax.grad(summed(FUNCTIONS[name], jnp.where)))
        cuda = function.trace(X, T).lower(lowering_platforms=("cuda",))
        assert NAME not in cuda.as_text()
    program = jax.export.export(function)(X, T)
    assert NAME not in program.mlir_module()
    assert np.allclose(program.call(X, T), function(X, T), rtol=1e-11, atol=1e-12)


# --- eight devices ---


def sharded():
    """Print what is wrong with programs over eight devices."""
    mesh = jax.make_mesh((8,), ("rows",), axis_types=(AxisType.Auto,))
    place = NamedSharding(mesh, P("rows"))
    x = RNG.standard_normal((64, 200), dtype="f")
    target = jnp.asarray(RNG.integers(0, 200, 64))
    hot = kofn.hard_topk(jnp.asarray(x), 5)
    functions = {
        "weights": lambda x, c, h: kofn.soft_topk(x, 5),
        "logarithms": lambda x, c, h: kofn.log_soft_topk(x, 5),
        "label loss": lambda x, c, h: losses.entmax_loss(x, c, **OPTIONS),
        "likelihood": lambda x, c, h: losses.softmax_loss(x, c, **OPTIONS),
        "loss": lambda x, c, h: losses.topk_loss(x, h, **OPTIONS),
    }
    spread = [jax.device_put(a, place) for a in (x, target, hot)]
    for name, function in functions.items():

        def slope(x, c, h, function=function):
            return jax.grad(lambda x: (function(x, c, h) ** 2).sum())(x)

        for kind, f in {"value": function, "gradient": slope}.items():
            compiled = jax.jit(f).lower(*spread).compile()
            answer = compiled(*spread)
            if "all-gather" in compiled.as_text():
                print(name, kind, "gathers")
            if not answer.sharding.is_equivalent_to(place, answer.ndim):
                print(name, kind, "is not spread")
            wanted = jax.jit(f)(x, target, hot)
            if not np.allclose(answer, wanted, 1e-5, 1e-5):
                print(name, kind, "is wrong")
            parts = jax.shard_map(f, mesh=mesh, in_specs=P("rows"), out_specs=P("rows"))
            if NAME not in jax.jit(parts).lower(*spread).as_text():
                print(name, kind, "has no kernel under shard_map")
            if not np.allclose(jax.jit(parts)(*spread), wanted, 1e-5, 1e-5):
                print(name, kind, "is wrong under shard_map")


if __name__ == "__main__":
    sharded()
    print("done")


@full
@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="in jax.experimental before 0.6")
def test_shards_stay_where_they_are():
    run = as_program(__file__, devices=8)
    assert run.stdout.splitlines() == ["done"], run.stderr
