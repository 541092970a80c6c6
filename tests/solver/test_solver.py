"""Each trap of the solver, with the row that falls into it."""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import special

import oracles
from kofn import Link, links, soft_topk, soft_topk_threshold
from kofn.links import table
from kofn.solver.threshold import solve
from support import BOUNDED, CAPPED, INNER, LINKS, TWO_TAILS, Framework, every_link

pytestmark = pytest.mark.pairs

F32 = np.float32
PLATEAU = [10, 9.5, 9.2, -9, -10, -9.5, -9.9]


def test_two_floats_hold_a_threshold_next_to_a_score(framework):
    """One float32 of size 24 at T = 0.3 makes W collapse and the gradient 1e5 or more."""
    x = [15.505153, 4.3151116, 3.630773, 6.445712, 7.2184615, 11.226332, 13.861666]
    scores = framework.array(x, "float32")
    p = framework.numpy(soft_topk(scores, 3, link="exponential", temperature=0.3))
    assert 1 - p[5] == pytest.approx(1.7e-6, rel=0.1)
    if framework.name != "numpy":
        v = np.array([0.3, -1.0, 0.5, 2.0, -0.7, 1.3, 0.2], F32)
        got = framework.vjp(
            lambda x: soft_topk(x, 3, link="exponential", temperature=0.3),
            (scores,),
            framework.array(v, "float32"),
        )[0]
        expected = oracles.vjp(np.array(x, F32), 3, F32(0.3), "exponential", v).values[0]
        assert np.linalg.norm(got - expected) <= 1e-5 * np.linalg.norm(v)
        assert np.linalg.norm(got) < 1e-4


ENDS = [table.TABLE["linear"], *map(links.entmax, (1.2, 1.5, 1.7))]


@pytest.mark.parametrize("kernels", ["on", "reference"])
@pytest.mark.parametrize("link", ENDS, ids=["linear", "1.2", "1.5", "1.7"])
def test_beyond_the_support_weights_are_0_exactly(link, kernels, rng, monkeypatch):
    """Where F meets 0 like a power Newton's steps halve what is left, and stop with 1e-32 of it."""
    monkeypatch.setenv("KOFN_KERNELS", kernels)
    width = 1 / ((link.alpha or 2.0) - 1)
    for dtype in ("float32", "float64"):
        x = rng.standard_normal((500, 9)).astype(dtype)
        ordered = np.sort(x)[:, ::-1]
        for part in (1.001, 1.3, 30):  # of the temperature at which the choice becomes hard
            t = ((ordered[:, 2] - ordered[:, 3]) / (width * part)).astype(dtype)
            p = soft_topk(x, 3, link=link, temperature=t)
            assert np.all((p > 100 * np.finfo(dtype).tiny).sum(-1) == 3)
            assert np.abs(p.sum(-1) - 3).max() <= 4e-6 * np.finfo(dtype).eps / 1.2e-7


@pytest.mark.parametrize("link", LINKS)
def test_the_residual_is_split_at_one_half_and_not_at_zero(link):
    """Below F = ½ counted as F, above as 1 − F, also where F(0) is not ½."""
    x = np.array([[0.31, 0.29, 0.05, -0.2, -0.4, 0.11]], F32)
    for k in (1.0, 2.0, 2.5, 4.0):
        p = soft_topk(x, k, link=link)
        assert np.max(np.abs(p - oracles.soft_topk(x, k, 1.0, oracles.CDF[link]))) <= 3e-7


@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.1])
@pytest.mark.parametrize("link", TWO_TAILS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_plateau_is_balanced_on_a_logarithmic_scale(framework, link, temperature, dtype):
    """ΣF − k is flat between 9.2 and −9; the threshold still has a definite place there."""
    theta = framework.numpy(
        soft_topk_threshold(framework.array(PLATEAU, dtype), 3, link=link, temperature=temperature)
    )
    x = tuple(np.array(PLATEAU, dtype).astype(float).tolist())
    exact = oracles.exact_threshold(x, 3, temperature, link)
    assert theta == pytest.approx(exact, abs=2e-6 if dtype == "float32" else 1e-12)


def test_the_plateau_has_the_published_thresholds():
    x = np.array(PLATEAU, F32)
    published = {
        ("logistic", 1.0): 0.141781,
        ("logistic", 0.3): 0.081942,
        ("logistic", 0.1): 0.097899,
        ("laplace", 1.0): 0.141772,
        ("normal", 1.0): 0.097285,
        ("normal", 0.3): 0.100000,
    }
    for (link, temperature), theta in published.items():
        got = soft_topk_threshold(x, 3, link=link, temperature=temperature)
        assert got == pytest.approx(theta, abs=2e-6)


def test_it_stops_on_the_step_and_not_on_the_residual():
    """At T = 0.3 the residual is 1e-13 wherever θ lies; the gradient goes elsewhere with it."""
    framework = Framework("torch")
    v = np.array([0.1, 1.0, -2.0, 0.5, 1.5, -1.0, 0.3])
    got = framework.vjp(
        lambda x, k: soft_topk(x, k, temperature=0.3),
        (framework.array(PLATEAU, "float32"), framework.array(3.0, "float32")),
        framework.array(v, "float32"),
    )
    # In closed form, with the exact threshold: bisection in 80 bits would see the plateau too.
    theta = oracles.exact_threshold(tuple(PLATEAU), 3, 0.3, "logistic")
    w = oracles.PDF["logistic"]((np.array(PLATEAU, oracles.LD) - theta) / 0.3)
    mean = (w * v).sum() / w.sum()
    assert got[1] == pytest.approx(float(mean), rel=1e-5)
    expected = w * (v - mean) / 0.3
    assert np.linalg.norm(got[0] - expected) <= 1e-4 * np.linalg.norm(expected)


def test_it_neither_cycles_nor_throws_a_converged_row_away(framework):
    x = framework.array([0.0, 1 / 6], "float32")
    p = framework.numpy(soft_topk(x, 1, link="linear"))
    assert p == pytest.approx([5 / 12, 7 / 12], abs=1e-7)


@every_link
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_additive_masks_of_finfo_min_do_no_harm(framework, link, dtype, rng):
    low = float(np.finfo(dtype).min)
    x = rng.standard_normal((4, 30)).astype(dtype)
    hidden = rng.random((4, 30)) < 0.4
    masked = framework.array(np.where(hidden, low, x), dtype)
    deleted = framework.array(np.where(hidden, -np.inf, x), dtype)
    for temperature in (0.5, 2.0):
        got = framework.numpy(soft_topk(masked, 3, link=link, temperature=temperature))
        expected = framework.numpy(soft_topk(deleted, 3, link=link, temperature=temperature))
        assert np.max(np.abs(got - expected)) <= (5e-7 if dtype == "float32" else 1e-13)


@every_link
@pytest.mark.parametrize("kernels", ["", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores_beyond_all_others_are_certain(monkeypatch, link, kernels, dtype, rng):
    """Additive masks and their opposite, in rows so wide that a step leaves a halving to do."""
    monkeypatch.setenv("KOFN_KERNELS", kernels)
    largest = float(np.finfo(dtype).max)
    for std in (1, 30, 300):
        x = (rng.standard_normal((200, 9)) * std).astype(dtype)
        far = rng.random(x.shape) < 0.25
        ends = [largest, -0.499 * largest, 1e30, -1e30]
        x = np.where(far, rng.choice(ends, x.shape), x).astype(dtype)
        k = rng.integers(1, 9, 200)
        p = soft_topk(x, k, link=link)
        assert p.sum(-1) == pytest.approx(k, rel=1e-6)
        order = np.argsort(x, axis=-1, kind="stable")
        assert np.all(np.diff(np.take_along_axis(p, order, -1), axis=-1) >= -1e-6)


@every_link
@pytest.mark.parametrize(
    "x",
    [
        [3e38, -3e38, 0.0, 1.0, -1.0],
        [3e38, 2.9e38, 2.8e38, -3.4e38],
        [1e-38, -1e-38, 0.0, 2e-38],
        [-1e9, -1e9, 0.1, 0.2, 0.3],
        [-1e4, 0.1, 0.2, 0.3],
        [1e30, 1e20, 1e10, 1.0, 1e-10, 0.0],
    ],
)
def test_it_always_ends_with_the_right_sum(framework, link, x):
    for k in (1.0, 1.5, 2.0, 3.0):
        p = framework.numpy(soft_topk(framework.array(x, "float32"), k, link=link))
        assert p.sum() == pytest.approx(k, rel=1e-6)
        assert np.all((p >= 0) & (p <= 1))
        assert np.all(np.diff(p[np.argsort(x, kind="stable")]) >= -1e-7)


def test_the_solver_asks_a_row_only_for_its_reductions(rng):
    """Ragged rows by segment sums: other reductions, the same solver."""
    lengths = np.array([3, 7, 1, 5])
    segment = np.repeat(np.arange(4), lengths)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])

    class Ragged:
        def min(self, values):
            return np.minimum.reduceat(values, starts)

        def max(self, values):
            return np.maximum.reduceat(values, starts)

        def sum(self, values):
            return np.add.reduceat(values, starts)

        def count(self, flags):
            return np.add.reduceat(flags.astype(int), starts)

        def expand(self, per_row):
            return per_row[segment]

    x = rng.standard_normal(lengths.sum())
    k, temperature = np.array([1.0, 2.5, 0.5, 4.0]), np.array([1.0, 0.3, 2.0, 0.01])
    for link in LINKS:
        hi, lo = solve(x, k, temperature, table.TABLE[link].inner, Ragged())
        for row in range(4):
            alone = (x[segment == row], k[row], temperature[row])
            dense = sum(solve(*alone, table.TABLE[link].inner))
            assert hi[row] + lo[row] == pytest.approx(dense, abs=1e-12)


def test_rounds_stay_few(rng, monkeypatch):
    """A handful of looks at a row; a solver that fell back to halving would need forty."""
    from kofn.solver import threshold

    looks = []
    balance = threshold.balance
    monkeypatch.setattr(threshold, "balance", lambda p, z: looks.append(1) or balance(p, z))
    for link in LINKS:
        limit = 12 if link in CAPPED else 10 if link in BOUNDED else 5 - (link == "logistic")
        counts = []
        for n, k in [(8, 2), (64, 8), (1024, 32), (32768, 64)]:
            for spread in (0.1, 1.0, 5.0):
                for _ in range(3):
                    x = (rng.standard_normal(n) * spread).astype(F32)
                    looks.clear()
                    solve(x[None], np.array([k], F32), np.ones(1, F32), table.TABLE[link].inner)
                    counts.append(len(looks))
        assert max(counts) <= limit, link
        assert np.mean(counts) <= 4.5, link


def test_jax_without_float64_solves_in_float32():
    """JAX's default: no float64 anywhere, XLA flushing subnormal numbers to zero."""
    code = """
import jax, jax.numpy as jnp, numpy as np
from kofn import soft_topk, soft_topk_threshold
x = jnp.array([10, 9.5, 9.2, -9, -10, -9.5, -9.9])
assert x.dtype == jnp.float32
theta = soft_topk_threshold(x, 3, temperature=0.1)
assert abs(float(theta) - 0.097899) < 2e-6, theta
y = jnp.array([10.0, 9, -9, -10])
for t, end in ((0.3, 0.0172226), (0.2, 0.0033464), (0.1, 2.27e-5)):
    dk = jax.jacfwd(lambda k: soft_topk(y, k, temperature=t))(2.0)
    assert np.allclose(dk, (end, 0.5 - end, 0.5 - end, end), atol=1e-6), dk
assert np.isfinite(jax.hessian(lambda x: soft_topk(x, 2, temperature=0.15)[0])(y)).all()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("shape", [(7, 30, 1001), (3, 150_000)])
def test_jax_takes_rows_in_groups(rng, shape):
    """A few rows after a few, each with its own k and temperature, the last group not full."""
    framework = Framework("jax")
    x = rng.normal(size=shape)
    x[rng.random(shape) < 0.1] = -math.inf
    k, t = rng.uniform(1, 9, shape[:-1]), rng.uniform(0.5, 2, shape[:-1])
    got = soft_topk_threshold(*(framework.array(a) for a in (x, k)), temperature=framework.array(t))
    assert framework.numpy(got) == pytest.approx(
        soft_topk_threshold(x, k, temperature=t), abs=1e-12
    )


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
def test_a_normal_sample_takes_few_looks(monkeypatch, link, spread):
    from kofn.solver import threshold

    looks = []
    balance = threshold.balance
    monkeypatch.setattr(threshold, "balance", lambda p, z: looks.append(1) or balance(p, z))
    x = np.random.default_rng(0).normal(size=1024).astype(F32) * F32(spread)
    solve(x[None], np.array([64], F32), np.ones(1, F32), table.TABLE[link].inner)
    # The search takes logarithms of the odds, which are a line where tails are exponential.
    bent = link in CAPPED or not any(kind.exponential_tails for kind in INNER[link].kinds)
    most = 4 if link in BOUNDED else 3 if bent else 2
    assert len(looks) <= most


def test_a_link_that_is_nan_at_infinity_never_sees_it():
    """z·φ(z) is ∞·0 there; scores of finfo.min at T = ½ would be that far away."""

    def bell(z):
        return np.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    link = Link(lambda z: special.ndtr(z) - z * bell(z), lambda z: z * z * bell(z))
    x = np.array([1.0, 0.3, np.finfo("float32").min, -0.4, 0.2], np.float32)
    p = soft_topk(x, 2, link=link, temperature=0.5)
    assert p.sum() == pytest.approx(2, abs=1e-6)
    assert p[2] == 0
