"""Σp is k, by every backend, though each weight is rounded: the bound of docs/behaviour.md."""

import numpy as np
import pytest

import kofn
from kofn.formulas import total
from kofn.solver.reductions import DENSE
from pairs import pairwise
from support import LINKS, TOTAL, TOTAL_BOUND, Framework, full_but

POWERS = [kofn.links.entmax(alpha) for alpha in (1.1, 1.2, 1.3, 1.7, 3.0)]
TEMPERATURE = 10.0


def rows(n, count, rng):
    """Rows in which many scores are equal or nearly so, and their errors with them; and others."""
    x = np.empty((5, n))
    x[0] = np.repeat([0, 0.003], [n * 2 // 5, n - n * 2 // 5])
    x[1] = 0.25
    x[2] = np.maximum(rng.standard_normal(n), 0)
    x[3] = 0.1 * rng.standard_normal(n)
    x[4] = 100 * rng.standard_normal(n)
    k = np.exp(rng.uniform(np.log(0.1), np.log(0.95 * n), (count, len(x))))
    return np.broadcast_to(x, (count, *x.shape)).astype("f4"), k.astype("f4")


def missed(p, k):
    return np.max(np.abs(p.astype(np.float64).sum(-1) - k) / k)


@pairwise(
    way=[
        *(("numpy", "on"), ("torch", "on"), ("torch", "reference")),
        pytest.param(("numpy", "reference"), marks=pytest.mark.full),
    ],
    n=[64, 1000, 9001],
    link=[*LINKS, *POWERS],
)
def test_equal_scores_do_not_add_up_their_rounding(way, link, n, rng, monkeypatch):
    name, kernels = way
    monkeypatch.setenv("KOFN_KERNELS", kernels)
    framework = Framework(name)
    x, k = rows(n, 40 if n < 2000 else 4, rng)
    p = kofn.soft_topk(
        framework.array(x, "float32"),
        framework.array(k, "float32"),
        link=link,
        temperature=TEMPERATURE,
    )
    assert missed(framework.numpy(p), k) <= TOTAL_BOUND["float32"]


def test_the_promise_holds_with_a_margin_of_2():
    for dtype, bound in TOTAL_BOUND.items():
        assert 2 * bound <= TOTAL[dtype]


@pytest.mark.parametrize("link", full_but(POWERS[:1], (*LINKS, *POWERS)))
def test_on_jax(link, rng, monkeypatch):
    """In array code, where no number is a float64."""
    import jax

    monkeypatch.setenv("KOFN_KERNELS", "reference")
    x, k = rows(1000, 8, rng)
    with jax.enable_x64(False):
        p = jax.jit(lambda x, k: kofn.soft_topk(x, k, link=link, temperature=TEMPERATURE))(x, k)
        assert p.dtype == "float32"
    assert missed(np.asarray(p), k) <= TOTAL_BOUND["float32"]


def test_long_rows(rng):
    for link in (*LINKS, *POWERS):
        x, k = rows(200_000, 1, rng)
        p = kofn.soft_topk(x, k, link=link, temperature=TEMPERATURE)
        assert missed(p, k) <= TOTAL_BOUND["float32"]


def test_infinite_and_masked_scores_take_no_part_in_the_step(rng, monkeypatch):
    x, k = rows(1000, 20, rng)
    x, k = x.copy(), k + 3
    x[..., :3], x[..., 3:50] = np.inf, -np.inf
    for kernels in ("on", "reference"):
        monkeypatch.setenv("KOFN_KERNELS", kernels)
        p = kofn.soft_topk(x, k, link=kofn.links.entmax(1.3), temperature=TEMPERATURE)
        assert np.all(p[..., :3] == 1)
        assert np.all(p[..., 3:50] == 0)
        inside = k < 900
        assert missed(p[inside], k[inside]) <= TOTAL_BOUND["float32"]


def test_no_row_depends_on_others(rng, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    x, k = rows(1000, 8, rng)
    together = kofn.soft_topk(x, k, link="normal", temperature=TEMPERATURE)
    alone = [
        kofn.soft_topk(row, each, link="normal", temperature=TEMPERATURE)
        for row, each in zip(x.reshape(-1, 1000), k.ravel(), strict=True)
    ]
    assert np.max(np.abs(together.reshape(-1, 1000) - alone)) <= 2e-7


def test_what_is_missing_is_known_to_the_last_places(rng):
    """Where a plain sum of float32 numbers is off by more than is missed."""
    p = np.full((1, 4096), 0.3 / 4096, "f4") * (1 + 1e-6 * rng.random((1, 4096)))
    p = p.astype("f4")
    for off in (0, 1e-7, 3e-6):
        k = np.float32([p.sum(dtype=np.float64) * (1 + off)])
        exact = k.astype(np.float64) - p.sum(-1, dtype=np.float64)
        assert abs(total.missing(p, k, DENSE) - exact) <= 2.0**-26 * k
