"""Derivatives of logarithms of weights on JAX, in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kofn
from support import LINKS, TWO_TAILS, every_link, full_but

ROWS = {  # scores, k, T
    "usual": ([0.3, -np.inf, 1.2, -0.7, 0.1, 2.0], 2.3, 0.7),
    "infinite": ([0.3, np.inf, 1.2, -0.7, np.inf, 2.0], 1.3, 0.7),
    "nearly hard": ([0.3, -0.1, 5.2, 4.7, 0.6], 2.2, 0.5),
}


def answers(link):
    return lambda x, k, t: kofn.log_soft_topk(x, k, link=link, temperature=t)


@pytest.mark.parametrize("link", full_but(("logistic", "entmax"), LINKS))
@pytest.mark.parametrize("name", ROWS)
def test_they_are_differences(link, name):
    """Forward mode is a difference of the answer, and a second derivative of the gradient."""
    x, k, t = (np.asarray(each) for each in ROWS[name])
    rng, step, f = np.random.default_rng(3), 1e-6, answers(link)
    finite = np.isfinite(x)
    by = np.where(finite, rng.standard_normal(x.shape), 0.0), np.array(0.7), np.array(-0.3)
    v = rng.standard_normal(x.shape)

    def total(x, k, t):
        logs = f(x, k, t)
        return (jnp.where(jnp.isfinite(logs), logs, 0.0) * v).sum()

    def moved(sign):
        rows = zip((x, k, t), by, strict=True)
        return tuple(row + sign * step * np.where(each == 0, 0, each) for row, each in rows)

    slopes = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    value, tangent = jax.jit(lambda *rows: jax.jvp(f, rows, by))(x, k, t)
    there = np.isfinite(value)
    ends = [np.asarray(jax.jit(f)(*moved(sign)))[there] for sign in (1, -1)]
    close = {"rel": 1e-6, "abs": 1e-6}
    assert np.asarray(tangent)[there] == pytest.approx((ends[0] - ends[1]) / (2 * step), **close)
    found = jax.jit(lambda *rows: jax.jvp(slopes, rows, by)[1])(x, k, t)
    pairs = (slopes(*moved(sign)) for sign in (1, -1))
    for got, above, below in zip(found, *pairs, strict=True):
        wanted = (np.asarray(above) - np.asarray(below)) / (2 * step)
        assert np.asarray(got) == pytest.approx(wanted, **close)


@pytest.mark.parametrize("link", full_but(("logistic",), TWO_TAILS))
def test_they_are_right_where_slopes_underflow(link):
    """In float32 ΣF′ is 0 in this row, in float64 it is not."""
    x = np.float32([0.0, 1.0, 90.0, 91.5] if link != "normal" else [0.0, 0.2, 20.0, 20.3])
    t, v = np.float32(0.4 if link != "normal" else 0.7), np.float32([1.0, -2.0, 0.5, 1.5])

    def bent(dtype):
        def slopes(x):
            pulled = jax.vjp(lambda x: answers(link)(x, 2, dtype(t)), x)[1]
            return pulled(jnp.asarray(v, dtype))[0]

        x_ = jnp.asarray(x, dtype)
        return np.asarray(jax.jit(lambda x: jax.jvp(slopes, (x,), (x_ * x_,))[1])(x_), float)

    wanted = bent(np.float64)
    assert np.abs(wanted).max() > 0
    assert bent(np.float32) == pytest.approx(wanted, rel=2e-4, abs=2e-5 * np.abs(wanted).max())


def test_they_are_numbers_at_extreme_scores_and_temperatures():
    """θ lies between 2 and 3, each of which moves it by half of its change."""
    x = jnp.asarray([1e30, 0.0, 1.0, -1e30, 2.0, 3.0], "float32")
    t, v = jnp.asarray(1e-19, "float32"), jnp.arange(6.0, dtype="float32")
    f = answers("logistic")
    by = t * jnp.asarray([1.0, 2.0, 3.0, 5.0, 7.0, 13.0], "float32")
    tangent = jax.jit(lambda x: jax.jvp(lambda x: f(x, 2, t), (x,), (by,))[1])(x)
    assert tangent == pytest.approx([0.0, -8.0, -7.0, 0.0, -3.0, 0.0], rel=1e-5)
    bent = jax.jit(
        lambda x: jax.jvp(lambda x: jax.vjp(lambda x: f(x, 2, t), x)[1](v)[0], (x,), (by,))[1]
    )
    assert not np.any(bent(x))


@every_link
def test_their_program_is_short(link):
    """Array code's was up to 9,000 lines."""
    x, v = jnp.zeros(30), np.arange(30.0)
    bent = jax.jit(jax.hessian(lambda x: (kofn.log_soft_topk(x, 4, link=link) * v).sum()))
    assert bent.lower(x).as_text().count("\n") < 3000
