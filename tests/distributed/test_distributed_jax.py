"""kofn.distributed on JAX: rows along axes of jax.shard_map.

XLA makes eight devices of one processor only in a process that starts so: this file is its script.
"""

import os
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import kofn
import xla_flags
from kofn import distributed
from places import as_program

X, C, V = (np.random.default_rng(i).standard_normal((4, 16)) for i in range(3))
K, T = np.array([1.0, 2.5, 0.0, 16.0]), np.array([0.5, 1.0, 2.0, 1.0])
KF, TF = np.array([1e-3, 2.5, 7.0, 16 - 1e-3]), np.array([1e-30, 1e-30, 1.0, 1e-3])
PLACES, QS = np.arange(5), np.array([0.2, 0.7])
ENTRIES, ROWS = P("b", "i"), P("b")
SPECIAL = X.copy()
SPECIAL[0, 3:9], SPECIAL[1, 5], SPECIAL[2, 2], SPECIAL[3] = -np.inf, np.inf, np.nan, -np.inf
BARRED = X.copy()  # the targets of the first two rows
BARRED[0, 3:9], BARRED[1, 5] = -np.inf, np.inf


def maps(on, **axis):
    """Each map of `on`, of x, k and T, with what it returns."""
    return {
        "softmax": (lambda x, k, t: on.softmax(x, temperature=t, **axis), ENTRIES),
        "hard_topk": (lambda x, k, t: on.hard_topk(jnp.round(x), k, **axis), ENTRIES),
        "hard number": (lambda x, k, t: on.hard_topk(jnp.round(x), 3.5, **axis), ENTRIES),
        "sparsemax": (lambda x, k, t: on.sparsemax(x, temperature=t, **axis), ENTRIES),
        "entmax": (lambda x, k, t: on.entmax(x, 1.3, temperature=t, **axis), ENTRIES),
        "soft_topk": (lambda x, k, t: on.soft_topk(x, k, temperature=t, **axis), ENTRIES),
        "normal": (lambda x, k, t: on.soft_topk(x, k, link="normal", **axis), ENTRIES),
        "number": (lambda x, k, t: on.soft_topk(x, 3, link="exponential", **axis), ENTRIES),
        "cold": (lambda x, k, t: on.soft_topk(x, k, temperature=1e-3 * t, **axis), ENTRIES),
        "hard": (lambda x, k, t: on.soft_topk(x, k, hard=True, **axis), ENTRIES),
        "threshold": (lambda x, k, t: on.soft_topk_threshold(x, 3, temperature=t, **axis), ROWS),
        "sum": (lambda x, k, t: on.soft_topk_sum(x, k, temperature=t, **axis), ROWS),
        "largest": (lambda x, k, t: on.topk(x, 3, **axis).values @ jnp.float32([1, 2, 3]), ROWS),
        "places": (
            lambda x, k, t: (
                on.topk(jnp.round(x), 5, largest=False, **axis).indices.astype(x.dtype)
                @ jnp.asarray(3.0**PLACES, x.dtype)
            ),
            ROWS,
        ),
        "quantile": (lambda x, k, t: on.quantile(x, 0.3, dim=-1, **axis), ROWS),
        "quantiles": (
            lambda x, k, t: jnp.stack([1.0, 2.0]) @ on.quantile(x, QS, dim=-1, mask=x < 1, **axis),
            ROWS,
        ),
        "smooth quantile": (
            lambda x, k, t: on.quantile(x, 0.3, dim=-1, temperature=0.5, **axis),
            ROWS,
        ),
        **of_jax(knapsacks(on, **axis)),
        **of_jax(losses_of(kofn.losses if on is kofn else on, **axis)),
    }


def of_jax(functions):
    def of(f):
        return lambda x, k, t: f(*map(jnp.asarray, (x, k, t)))

    return {name: (of(f), answer) for name, (f, answer) in functions.items()}


def tame(x):
    return jax.lax.stop_gradient(jnp.nan_to_num(x, nan=0.5, posinf=1.0, neginf=-1.0))


def costs(x):
    """Costs that move with the scores; some are 0."""
    moved = jnp.where(jnp.isfinite(x), x, 0.5)
    return jnp.where(tame(x) > 0.9, 0.0, 1 + jnp.sin(3 * moved) ** 2)


def knapsacks(on, **axis):
    weights, price, best = (
        getattr(on, f"soft_knapsack{name}") for name in ("", "_threshold", "_value")
    )
    return {
        "knapsack": (lambda x, k, t: weights(x, costs(x), 2 * k, temperature=t, **axis), ENTRIES),
        "cold knapsack": (
            lambda x, k, t: weights(x, 2.0, 2 * k, link="normal", temperature=1e-3 * t, **axis),
            ENTRIES,
        ),
        "price": (lambda x, k, t: price(x, costs(x), 9.0, temperature=t, **axis), ROWS),
        "best": (lambda x, k, t: best(x, costs(x), 9.0, temperature=t, **axis), ROWS),
    }


def losses_of(on, **axis):
    """Losses of indices and of weights, which are this device's part."""

    def of(name, target, smooth=False, **options):
        def loss(x, k, t):
            own = dict(reduction="none", **options, **axis)
            if smooth:
                place = jax.lax.axis_index("i") * 4 + jnp.arange(4) if axis else jnp.arange(16)
                own |= dict(weight=1 + 0.1 * place, label_smoothing=0.2)
            return getattr(on, name)(x, target(x, k), temperature=t, **own)

        return loss, ROWS

    def labels(x, k):
        return (3 * k).astype(int) % 16

    def some(x, k):
        return tame(x) > 0.4

    def soft(x, k):
        return 0.1 * jax.nn.sigmoid(tame(x))

    return {
        "softmax_loss": of("softmax_loss", labels),
        "smoothed": of("softmax_loss", labels, True),
        "soft target": of("softmax_loss", soft),
        "sparsemax_loss": of("sparsemax_loss", labels, True),
        "entmax_loss": of("entmax_loss", labels, alpha=1.3),
        "topk_loss": of("topk_loss", some),
        "fenchel_young_loss": of("fenchel_young_loss", soft, link="normal"),
    }


def far():
    """Rows that Newton's method is lost on: of tiny numbers, an ulp apart, and far apart."""
    rng, info = np.random.default_rng(7), np.finfo(float)
    ulps = 1 + info.eps * np.arange(16)
    rows = [16 * info.smallest_normal * rng.integers(-4, 5, 16), rng.permutation(ulps)]
    return np.stack([*rows, 1e12 * X[0], np.where(X[1] > 0, 1e300, X[1])])


WITHOUT_GRADIENT = ("hard_topk", "hard number", "places")


def program(f, *arguments):
    return jax.jit(f).lower(*arguments).as_text().splitlines()


def near(a, b):
    a, b = (jax.tree.leaves(each) for each in (a, b))
    return all(np.allclose(x, y, 1e-9, 1e-9, equal_nan=True) for x, y in zip(a, b, strict=True))


def check(name, tracked, kinds):
    mesh = jax.make_mesh((2, 4), ("b", "i"), axis_types=(AxisType.Auto,) * 2)
    whole, answer = maps(kofn)[name]
    part, _ = maps(distributed, axis_name="i")[name]

    def shards(f, inputs, outputs):
        return jax.jit(
            jax.shard_map(f, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=tracked)
        )

    def total(f):
        return lambda x, k, t, c: (f(x, k, t) * c).sum()

    given, c = (ENTRIES, ROWS, ROWS), C if answer == ENTRIES else C[:, 0]
    placed = shards(part, given, answer)
    each = jax.vmap(part, in_axes=(0, None, None))

    def tangents(f):
        return jax.jvp(f, (X, K, T), (V, np.zeros(4), V[:, 0]))[1]

    def bent(f):
        return jax.grad(lambda x: (jax.grad(total(f))(x, K, T, c) * V).sum())(X)

    def total_here(x, k, t):
        return jnp.sin(total(placed)(x, k, t, c))

    def steepness(f, of=(0,)):
        """The square of the slopes of f in some of its arguments, by reverse mode."""
        return lambda *at: sum((each * each).sum() for each in jax.grad(f, of)(*at))

    checks = {
        "value": lambda: near(placed(X, K, T), whole(X, K, T)),
        "special": lambda: near(placed(SPECIAL, K, T), whole(SPECIAL, K, T)),
        "far": lambda: near(placed(far(), KF, TF), whole(far(), KF, TF)),
        # Of array code that is differentiated twice they are as many again.
        "short": lambda: len(program(jax.hessian(lambda x: total(placed)(x, K, T, c)), X)) < 3500,
        # Rules that lack a case raise while JAX traces.
        "thrice": lambda: (
            jax.eval_shape(steepness(steepness(steepness(total_here, (0, 1, 2)))), X, K, T).ndim
            == 0
        ),
        "float32": lambda: near(placed(np.float32(X), K, T).dtype == jnp.float32, True),
        "vmap": lambda: near(
            shards(each, (P(None, *ENTRIES), ROWS, ROWS), P(None, *answer))(np.stack([X, V]), K, T),
            np.stack([whole(X, K, T), whole(V, K, T)]),
        ),
        "inside": lambda: near(
            shards(jax.grad(total(part)), (*given, answer), ENTRIES)(X, K, T, c),
            jax.grad(total(whole))(X, K, T, c),
        ),
        "outside": lambda: near(
            jax.grad(total(placed), (0, 1, 2))(X, K, T, c),
            jax.grad(total(whole), (0, 1, 2))(X, K, T, c),
        ),
        "barred": lambda: near(
            jax.grad(total(placed), (0, 2))(BARRED, K, T, c),
            jax.grad(total(whole), (0, 2))(BARRED, K, T, c),
        ),
        "tangents": lambda: near(tangents(placed), tangents(whole)),
        "second": lambda: near(bent(placed), bent(whole)),
    }
    wrong = [kind for kind in kinds if not checks[kind]()]
    print(name, "tracked" if tracked else "untracked", "wrong:" if wrong else "is right", *wrong)


def refused():
    """Say which calls with wrong arguments are taken, or refused in other words."""
    mesh = jax.make_mesh((2, 4), ("b", "i"), axis_types=(AxisType.Auto,) * 2)
    x = jnp.asarray(X)

    def inside(f):
        return jax.shard_map(f, mesh=mesh, in_specs=ENTRIES, out_specs=ENTRIES)(x)

    def soft(x, k=2, **given):
        return distributed.soft_topk(x, k, **given)

    calls = {
        "give axis_name": lambda: soft(x),
        "group is for torch tensors": lambda: soft(x, group=object()),
        "axis_name is for JAX": lambda: soft(X, axis_name="i"),
        "'i', which is not an axis in scope": lambda: soft(x, axis_name="i"),
        r"'rows', which is not an axis in": lambda: inside(lambda x: soft(x, axis_name="rows")),
        r"k may differ along the axes \['i'\]": lambda: inside(
            lambda x: soft(x, x[:, 0], axis_name="i")
        ),
        r"budget may differ along the axes \['i'\]": lambda: inside(
            lambda x: distributed.soft_knapsack(x, 1.0, x[:, 0], axis_name="i")
        ),
        "hard must be False inside": lambda: inside(
            lambda x: distributed.soft_knapsack(x, 1.0, 2, axis_name="i", hard=True)
        ),
        "topk_loss: .* give axis_name": lambda: distributed.topk_loss(x, x > 0),
        "k must be .* 16 entries": lambda: inside(lambda x: soft(x, 17, axis_name="i")),
    }
    for words, call in calls.items():
        try:
            call()
        except (TypeError, ValueError) as error:
            if not re.search(words, str(error)):
                print(words, "is refused as", error)
        else:
            print(words, "is taken")


ALL = ("value", "special", "float32", "vmap", "inside", "outside", "tangents", "second")


def main(*tasks):
    jax.config.update("jax_enable_x64", True)
    for task in tasks:
        name, tracked, *kinds = task.split("/")
        check(name, tracked == "tracked", kinds)
    refused()


if __name__ == "__main__":
    main(*sys.argv[1:])


def report(*tasks, flags=os.environ["XLA_FLAGS"]):
    run = as_program(__file__, *tasks, devices=8, XLA_FLAGS=flags)
    found = run.stdout.splitlines()
    wrong = [line for line in found if not line.endswith("is right")]
    return wrong or (None if len(found) == len(tasks) else run.stderr[-2000:])


needs_shard_map = pytest.mark.skipif(
    not hasattr(jax, "shard_map"), reason="in jax.experimental before 0.6"
)


@needs_shard_map
def test_shards_of_rows_are_parts_of_the_whole_rows():
    assert (
        report(
            "softmax/tracked/value/inside/outside",
            "softmax/untracked/outside",
            "hard_topk/tracked/value",
            "largest/tracked/value/special/inside/outside",
            "places/tracked/value/special",
            "quantile/tracked/value/special/inside/outside",
            "knapsack/tracked/value",
            "soft_topk/tracked/far/short/thrice",
            "smoothed/tracked/value/inside/barred",
        )
        is None
    )


@pytest.mark.full
@needs_shard_map
@pytest.mark.parametrize("tracked", ["tracked", "untracked"])
@pytest.mark.parametrize("name", maps(kofn))
def test_every_map_and_its_derivatives(name, tracked):
    kinds = ALL[:4] if name in WITHOUT_GRADIENT else ALL
    kinds = [*kinds, "barred"] if name in losses_of(kofn.losses) else kinds
    if tracked == "untracked" and maps(kofn)[name][1] == ROWS:
        # Without check_vma JAX sums the cotangents of what all devices have the same of.
        kinds = [kind for kind in kinds if kind != "inside"]
    # XLA would take a minute for each; the test above has the flags that are set.
    assert report("/".join((name, tracked, *kinds)), flags=xla_flags.of_installed()) is None
