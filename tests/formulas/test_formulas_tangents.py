"""Second derivatives of weights on JAX, in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kofn
from support import LINKS, TWO_TAILS, every_link, full_but

X, V = (np.random.default_rng(seed).standard_normal((3, 6)) for seed in (1, 2))
X[0, 1], X[1, 2], X[2, 4] = -np.inf, np.inf, 9.0
ROWS = X, np.array([1.3, 2.0, 3.7]), np.array([0.7, 1.0, 1.4])


def squares(link):
    """A sum whose cotangents of the weights move with them."""
    return lambda x, k, t: (kofn.soft_topk(x, k, link=link, temperature=t) ** 2 * V).sum()


def moved(rows, step, by):
    return tuple(
        row + np.where(np.isfinite(row), step * each, 0) for row, each in zip(rows, by, strict=True)
    )


@pytest.mark.parametrize("link", full_but(("logistic", "entmax"), LINKS))
@pytest.mark.parametrize(
    "order", full_but(("reverse over reverse",), ("reverse over reverse", "forward over reverse"))
)
def test_second_derivatives_are_differences_of_the_first(link, order):
    """The kernels' gradients are right to rounding, so their differences are to 9 digits."""
    by = tuple(
        np.random.default_rng(seed).standard_normal(row.shape) for seed, row in enumerate(ROWS)
    )
    by = tuple(np.where(np.isfinite(row), each, 0.0) for row, each in zip(ROWS, by, strict=True))
    slopes = jax.grad(squares(link), argnums=(0, 1, 2))

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


@every_link
def test_their_program_is_short(link):
    """XLA compiles it in a second. The derivatives of array code were up to 8,000 lines."""
    x, v = jnp.zeros(30), np.arange(30.0)
    bent = jax.jit(jax.hessian(lambda x: (kofn.soft_topk(x, 4, link=link) * v).sum()))
    assert bent.lower(x).as_text().count("\n") < 1000


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
