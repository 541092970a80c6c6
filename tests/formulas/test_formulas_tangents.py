"""Second derivatives of weights, thresholds and smoothed sums on JAX, in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kofn
from support import LINKS, TWO_TAILS, every_link, full_but

X, V = (np.random.default_rng(seed).standard_normal((3, 6)) for seed in (1, 2))
X[0, 1], X[1, 2], X[2, 4] = -np.inf, np.inf, 9.0
ROWS = X, np.array([1.3, 2.0, 3.7]), np.array([0.7, 1.0, 1.4])


FUNCTIONS = {
    "weights": kofn.soft_topk,
    "threshold": kofn.soft_topk_threshold,
    "sum": kofn.soft_topk_sum,
}


def squares(link, name="weights"):
    """A sum whose cotangents of the answers move with them."""

    def total(x, k, t):
        answers = FUNCTIONS[name](x, k, link=link, temperature=t)
        answers = jnp.where(jnp.isfinite(answers), answers, 0.0)  # of scores of +inf
        return (answers**2 * (V if answers.ndim == 2 else V[:, 0])).sum()

    return total


def moved(rows, step, by):
    return tuple(
        row + np.where(np.isfinite(row), step * each, 0) for row, each in zip(rows, by, strict=True)
    )


@pytest.mark.parametrize("link", full_but(("logistic", "entmax"), LINKS))
@pytest.mark.parametrize(
    "order", full_but(("reverse over reverse",), ("reverse over reverse", "forward over reverse"))
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_are_differences_of_the_first(link, order, name):
    """The first are right to rounding, so their differences are to 9 digits."""
    by = tuple(
        np.random.default_rng(seed).standard_normal(row.shape) for seed, row in enumerate(ROWS)
    )
    by = tuple(np.where(np.isfinite(row), each, 0.0) for row, each in zip(ROWS, by, strict=True))
    slopes = jax.grad(squares(link, name), argnums=(0, 1, 2))

    def along(*rows):
        return sum((slope * each).sum() for slope, each in zip(slopes(*rows), by, strict=True))

    if order == "reverse over reverse":
        found = jax.jit(jax.grad(along, argnums=(0, 1, 2)))(*ROWS)
    else:
        found = jax.jit(lambda *rows: jax.jvp(slopes, rows, by)[1])(*ROWS)
    first, step = jax.jit(slopes), 1e-5
    ends = [first(*moved(ROWS, sign * step, by)) for sign in (1, -1)]
    for got, above, below in zip(found, *ends, strict=True):
        wanted = (np.asarray(above) - np.asarray(below)) / (2 * step)
        assert np.asarray(got) == pytest.approx(wanted, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("link", full_but(("entmax",), LINKS))
@pytest.mark.parametrize("name", ["threshold", "sum"])
def test_forward_mode_is_a_difference(link, name):
    by = np.where(np.isfinite(X), V, 0.0), V[0, :3], V[1, :3]

    def answers(x, k, t):
        found = FUNCTIONS[name](x, k, link=link, temperature=t)
        return jnp.where(jnp.isfinite(found), found, 0.0)

    found = jax.jit(lambda *rows: jax.jvp(answers, rows, by)[1])(*ROWS)
    ends = [np.asarray(jax.jit(answers)(*moved(ROWS, step, by))) for step in (1e-6, -1e-6)]
    assert np.asarray(found) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("t", [0.1, 1e-12])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hard_rows_have_those_of_the_balance_of_tails(dtype, t):
    """Where slopes underflow, the tails of the logistic link are exponentials: so θ is known."""
    high, low = [90.0, 91.5, 90.0], [0.0, 1.0, 1.0]
    v, w = np.array([0.3, 1.0, -2.0, 0.7, 0.1, -0.4]), 0.2
    # With T, scores move by their distance in temperatures, which is rounded.
    rounding = 1024 * float(np.finfo(dtype).eps) * high[1] / t

    def balanced(x, t):
        least, greatest = x[0], x[5]
        above = jax.nn.logsumexp((least - x[:3]) / t)
        below = jax.nn.logsumexp((x[3:] - greatest) / t)
        return (least + greatest + t * (below - above)) / 2

    def threshold(x, t):
        return kofn.soft_topk_threshold(x, 3, temperature=t)

    def slope_in_k(x, t):
        return jax.grad(lambda k: kofn.soft_topk_sum(x, k, temperature=t))(
            jnp.asarray(3.0, x.dtype)
        )

    def bent(function, dtype, w):
        x, at = jnp.asarray(high + low, dtype), jnp.asarray(t, dtype)
        by = jnp.asarray(v * t, dtype), jnp.asarray(w * t, dtype)
        slopes = jax.grad(function, argnums=(0, 1))
        return jax.jvp(slopes, (x, at), by)

    close = {"rel": 1e-5, "abs": 1e-5} if dtype == "float32" else {"rel": 1e-9, "abs": 1e-9}
    program = jax.jit(bent, static_argnums=(0, 1))  # one for both changes of T
    for change_of_t in (0.0, w):
        first, second = program(balanced, "float64", change_of_t)
        for function in (threshold, slope_in_k):
            slopes, changes = program(function, dtype, change_of_t)
            for got, wanted in zip(slopes, first, strict=True):
                assert got == pytest.approx(np.asarray(wanted), **close)
            if function is slope_in_k:  # the slopes were second derivatives
                continue
            error = close if change_of_t == 0 else {"abs": rounding}
            assert changes[0] == pytest.approx(np.asarray(second[0]), **error)
            assert changes[1] == pytest.approx(np.asarray(second[1]), abs=rounding)


@every_link
@pytest.mark.parametrize("name", FUNCTIONS)
def test_their_program_is_short(link, name):
    """XLA compiles it in a second. The derivatives of array code were up to 8,000 lines."""
    x, v = jnp.zeros(30), np.arange(30.0)
    bent = jax.jit(jax.hessian(lambda x: (FUNCTIONS[name](x, 4, link=link) * v).sum()))
    assert bent.lower(x).as_text().count("\n") < (1000 if name == "weights" else 2500)


@pytest.mark.parametrize("link", full_but(("normal",), TWO_TAILS))
def test_they_keep_their_digits_where_slopes_underflow_in_float32(link):
    """ΣF′ is about 1e−34 there: too small to divide by, and F″ is a normal number still."""
    tail = kofn.links.table.TABLE[link].inner.quantile(np.array(1e-34))
    x = np.array([-2 * tail, 0.0, -0.02])

    def bent(x, dtype):
        x, v = jnp.asarray(x, dtype), jnp.asarray([1e30, -3e30, 2e30], dtype)
        slopes = jax.grad(lambda x: (kofn.soft_topk(x, 1, link=link) * v).sum())
        return np.asarray(jax.jit(lambda x: jax.jvp(slopes, (x,), (v / 1e30,))[1])(x), float)

    wanted = bent(np.float32(x), jnp.float64)
    assert bent(x, jnp.float32) == pytest.approx(wanted, abs=1e-4 * np.abs(wanted).max())


@pytest.mark.full
def test_third_derivatives_are_those_of_softmax():
    x, v = jnp.asarray(V[0]), jnp.asarray(V[1])

    def third(function):
        def along(step):
            return (function(x + step * v) ** 2 * V[2]).sum()

        return float(jax.grad(jax.grad(jax.grad(along)))(0.3))

    wanted = third(jax.nn.softmax)
    assert third(lambda x: kofn.soft_topk(x, 1, link="exponential")) == pytest.approx(
        wanted, rel=1e-9
    )
