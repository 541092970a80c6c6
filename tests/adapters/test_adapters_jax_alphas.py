"""Rows of JAX arrays with an alpha each: by kernels, whatever their alphas, as by array code."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kofn
from kofn import links, losses
from support import GRADIENT_HARD, full_but

INF, NAN = np.inf, np.nan
GENERAL = [1.21, 1.3, 1.49, 1.51, 1.75, 1.95]
MIXED = [1.5, 1.3, 1.0, 2.5, 2.0, 1.05, 1.7]
full = pytest.mark.full


def scores(count, n, dtype):
    rng = np.random.default_rng(n)
    x = rng.standard_normal((count, n)) * np.linspace(0.1, 4, count)[:, None]
    return jnp.asarray(x, dtype)


def finite(found):
    return jnp.where(jnp.isfinite(found), found, 0.0)


def log_weights(x, alpha):
    return finite(kofn.log_soft_topk(x, 1.5, link=links.entmax(alpha), temperature=0.7))


def log_entmax(x, alpha):
    return finite(kofn.log_entmax(x, alpha))


def label_loss(x, alpha):
    labels = jnp.arange(len(x)) % x.shape[-1]
    return losses.entmax_loss(x, labels, alpha=alpha, reduction="none")


def soft_loss(x, alpha):
    target = jax.nn.softmax(jnp.flip(x, -1), -1)
    return kofn.fenchel_young_loss(x, target, link=links.entmax(alpha), reduction="none")


FUNCTIONS = {
    "entmax": kofn.entmax,
    "soft_topk": lambda x, a: kofn.soft_topk(x, 2.5, link=links.entmax(a), temperature=0.7),
    "logarithms": log_weights,
    "label_loss": label_loss,
    "soft_loss": soft_loss,
}

ORDINARY = {("entmax", "float32"), ("label_loss", "float64")}


def value_and_slopes(function, x, alpha):
    answer, pull = jax.vjp(function, x, alpha)
    rng = np.random.default_rng(0)
    return answer, *pull(jnp.asarray(rng.standard_normal(answer.shape), answer.dtype))


@pytest.mark.parametrize(
    "alphas", [pytest.param(GENERAL, marks=full), MIXED], ids=["general", "mixed"]
)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if (name, dtype) in ORDINARY else full)
        for name in FUNCTIONS
        for dtype in ("float32", "float64")
    ],
)
def test_kernels_and_array_code_agree(name, dtype, alphas, monkeypatch):
    """Step by step of weights, in one program of the others."""
    x, alpha = scores(len(alphas), 40, dtype), jnp.asarray(alphas, dtype)
    called = functools.partial(value_and_slopes, FUNCTIONS[name])
    found = (called if name == "entmax" else jax.jit(called))(x, alpha)
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    right = jax.jit(functools.partial(called))(x, alpha)  # a function that JAX does not know yet
    for one, other in zip(found, right, strict=True):
        assert one.dtype == dtype
        size = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=0, atol=GRADIENT_HARD[dtype] * size)


@pytest.mark.parametrize("name", full_but(("label_loss",), FUNCTIONS))
def test_a_program_for_alphas_calls_the_kernels(name):
    x, alpha = scores(2, 40, "float32"), jnp.asarray([1.3, 1.7], "float32")
    slopes = jax.jit(jax.grad(lambda x, a: FUNCTIONS[name](x, a).sum(), (0, 1)))
    assert "kofn_rows" in slopes.lower(x, alpha).as_text()


@pytest.mark.full
@pytest.mark.parametrize("n", [pytest.param(7, marks=full), 130])
def test_bits_of_a_row_do_not_depend_on_the_alphas_beside_it(n):
    x, alpha = scores(len(MIXED), n, "float32"), jnp.asarray(MIXED, "float32")
    function = jax.jit(kofn.entmax)
    pull = jax.jit(lambda x, a, c: jax.vjp(kofn.entmax, x, a)[1](c))
    c = jnp.asarray(np.random.default_rng(1).standard_normal(x.shape), "float32")
    together, slopes = function(x, alpha), pull(x, alpha, c)
    for i, each in enumerate(MIXED):
        some = slice(i, i + 1)
        # The others are of array code, whose sums XLA orders by the shape of the batch.
        if 1 <= each <= 2 and each != 1.05:
            np.testing.assert_array_equal(function(x[some], alpha[some]), together[some])
            for one, other in zip(pull(x[some], alpha[some], c[some]), slopes, strict=True):
                np.testing.assert_array_equal(one, other[some])


@pytest.mark.full
@pytest.mark.parametrize(
    "alphas",
    [pytest.param([1.3] * 5, marks=full), [1.3, 1.5, 1.0, 2.0, 1.7]],
    ids=["one", "mixed"],
)
@pytest.mark.parametrize(
    "name",
    [name if name == "logarithms" else pytest.param(name, marks=full) for name in FUNCTIONS],
)
def test_hard_rows_have_the_bits_of_a_number_for_alpha(name, alphas):
    """Also those that kernels give up on, as of far scores."""
    hard = [[1, 300, 2, 3], [-INF, 2, 3, 1], [-3e38, 3e38, 1, 0], [1, NAN, 3, 2], [2, 2, 2, 2]]
    x, alpha = jnp.asarray(hard, "float32"), jnp.asarray(alphas, "float32")
    answer, in_x, in_alpha = value_and_slopes(FUNCTIONS[name], x, alpha)
    for place, number in enumerate(alpha.tolist()):
        right, pull = jax.vjp(lambda x, number=number: FUNCTIONS[name](x, number), x)
        rng = np.random.default_rng(0)
        (slope,) = pull(jnp.asarray(rng.standard_normal(right.shape), right.dtype))
        np.testing.assert_array_equal(answer[place], right[place])
        np.testing.assert_array_equal(in_x[place], slope[place])
    assert np.isnan(in_alpha[3]) or name == "logarithms"  # which are taken where they are finite
    assert np.isfinite(in_alpha[jnp.asarray([0, 1, 2, 4])]).all()


def test_rows_whose_logarithms_have_no_slope_have_no_cotangent():
    """The kernel writes nothing for them: what stood in memory before must not come out."""
    usual, alpha = scores(64, 600, "float32"), jnp.full(64, 1.3, "float32")
    far = jnp.zeros_like(usual).at[:, 7].set(300.0)
    pull = jax.jit(lambda x, a: jax.vjp(log_entmax, x, a)[1](jnp.ones_like(x)))
    for _ in range(3):
        jax.block_until_ready(pull(usual, alpha))
    for found in pull(far, alpha):
        np.testing.assert_array_equal(found, jnp.zeros_like(found))


@pytest.mark.full
@pytest.mark.parametrize("k", [9.0, *(pytest.param(k, marks=full) for k in (8.0, 1.0, 0.0))])
def test_edges_of_logarithms_have_the_cotangents_of_the_array_code(k, monkeypatch):
    """Masks, rows out of play, NaN, +inf, a clear winner; all chosen or none."""
    x = np.random.default_rng(0).standard_normal((6, 9)).astype("float32")
    x[1, 3], x[2], x[3, 4], x[4, 2], x[5] = -INF, -INF, NAN, INF, [300, *[0] * 8]
    alpha = jnp.asarray([1.3] * 6, "float32")

    def pulled():
        def total(x, a):
            return finite(kofn.log_soft_topk(x, k, link=links.entmax(a))).sum(-1)

        return jax.jit(lambda x, a: jax.vjp(total, x, a)[1](jnp.ones(6, "float32")))(
            jnp.asarray(x), alpha
        )

    ours = pulled()
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    jax.clear_caches()
    for found, right in zip(ours, pulled(), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(each, marks=full) for each in ("float16", "float32"))]
)
def test_alphas_of_other_shapes_and_types(dtype):
    x = jnp.asarray(np.random.default_rng(2).standard_normal((2, 3, 9)), dtype)
    for alpha in (
        jnp.asarray(1.3),
        jnp.asarray([1.3, 1.5, 1.7], "float32"),
        jnp.ones((2, 1)) * 1.6,
    ):
        answer, in_x, in_alpha = value_and_slopes(jax.jit(kofn.entmax), x, alpha)
        every = jnp.broadcast_to(alpha, x.shape[:-1])
        for place in np.ndindex(2, 3):
            right = kofn.entmax(x[place], every[place].astype("float32").tolist())
            np.testing.assert_array_equal(answer[place], right)
        assert answer.dtype == in_x.dtype == dtype
        assert (in_alpha.shape, in_alpha.dtype) == (alpha.shape, alpha.dtype)
    assert kofn.entmax(x[:0], jnp.ones((0, 3))).shape == (0, 3, 9)


@full
@pytest.mark.parametrize("name", ["entmax", "label_loss"])
def test_second_derivatives(name, monkeypatch):
    x, alpha = scores(2, 5, "float64"), jnp.asarray([1.3, 1.5])

    def hessian():
        return jax.hessian(lambda x, a: (FUNCTIONS[name](x, a) ** 2).sum(), (0, 1))(x, alpha)

    found = jax.tree.leaves(hessian())
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    for one, other in zip(found, jax.tree.leaves(hessian()), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-8)


def test_vmap_maps_over_alphas():
    x, alphas = scores(3, 20, "float64"), jnp.asarray([1.3, 1.5, 1.8])
    found = jax.vmap(lambda a: kofn.entmax(x, a))(alphas)
    for alpha, one in zip(alphas, found, strict=True):
        np.testing.assert_allclose(one, kofn.entmax(x, float(alpha)), rtol=0, atol=1e-12)
