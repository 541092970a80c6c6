"""Searches end: on subnormal scores, next to them, and on scores one ulp apart."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import kofn
from kofn import streaming
from kofn.arrays import flow
from kofn.solver import neighbours as beside
from support import LINKS, TOTAL, Framework, every_link

NEXT_TO_N = 2.9999999999999996


@pytest.fixture
def bounded(monkeypatch):
    """The loops of the array code, which fail here if they reach their bounds."""
    whole = flow.while_loop

    def strict(x, condition, body, state, most):
        if not isinstance(x, (np.ndarray, torch.Tensor)):
            return whole(x, condition, body, state, most)
        found = whole(x, condition, body, state, most)
        assert most == 1 or not condition(found), "a search has reached its bound"
        return found

    monkeypatch.setattr(beside, "while_loop", strict)


@pytest.mark.parametrize("alpha", [1.1, 2.5])
def test_a_bracket_of_subnormal_scores_closes(bounded, alpha):
    x = np.array([-8e-311, -6e-311, 6.7e-311])
    weights = kofn.soft_topk(x, 2.9991, link=kofn.links.entmax(alpha))
    assert np.abs(weights - 0.9997).max() <= 1e-12


def test_a_streamed_row_of_subnormal_scores_has_a_threshold(bounded):
    x = np.array([-5e-324, 2.2250738585072014e-308, 0.0])
    theta = streaming.soft_topk_threshold(x, NEXT_TO_N, link="laplace")
    assert theta == pytest.approx(math.log(2 * (3 - NEXT_TO_N) / 3), rel=1e-12)


def test_a_steep_link_of_subnormal_scores_keeps_the_order(bounded):
    x = np.array([1.1754943508222875e-38, -0.0, 1.1754943508222875e-38, -1.4e-45, 1.4e-45])
    weights = kofn.entmax(x.astype(np.float32), 100.0)
    assert weights[0] == weights[2] >= weights[[1, 3, 4]].max()
    assert 0 <= weights.min() <= weights.max() <= 1


def test_the_middle_of_two_floats_lies_between_them():
    """Half of three units of the smallest float is rounded to two, for both ends."""
    for dtype in (np.float32, np.float64):
        unit = np.finfo(dtype).smallest_subnormal
        ends = np.arange(-9, 10).astype(dtype) * unit
        low, high = (a.ravel() for a in np.meshgrid(ends, ends))
        low, high = np.minimum(low, high), np.maximum(low, high)
        middle = beside._halfway(low, high)
        assert ((low <= middle) & (middle <= high)).all()


def test_a_loop_ends_at_its_bound():
    for name in ("numpy", "torch", "jax"):
        state = Framework(name).array(0.0)
        found = flow.while_loop(state, lambda s: s >= 0, lambda s: s + 1, state, 7)
        assert float(found) == 7


def rows(rng, dtype, n=6):
    """Rows of n scores: subnormal, around the smallest normal number, and one ulp apart."""
    info = np.finfo(dtype)
    unit, small = info.smallest_subnormal, info.smallest_normal
    for scale in (unit, 16 * unit, small / 8, small, 16 * small):
        yield (rng.integers(-4, 5, n) * scale).astype(dtype)
    for start in (0.0, 1.0, -3.0, info.max / 4):
        row = [dtype(start)]
        while len(row) < n:
            row.append(np.nextafter(row[-1], dtype(np.inf), dtype=dtype))
        yield rng.permutation(np.array(row, dtype))


@every_link
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernels", ["on", "reference"])
def test_every_search_of_tiny_distances_ends(monkeypatch, bounded, rng, link, dtype, kernels):
    monkeypatch.setenv("KOFN_KERNELS", kernels)
    for row in rows(rng, np.dtype(dtype).type):
        for k in (1e-3, 1.0, 2.5, row.size - 1e-3):
            for temperature in (1.0, 1e-30):
                p = kofn.soft_topk(row, k, link=link, temperature=temperature)
                assert 0 <= p.min() <= p.max() <= 1
                assert abs(p.sum(dtype=float) - k) <= 4 * TOTAL[dtype] * max(k, 1)


@pytest.mark.full
@pytest.mark.parametrize("link", [*LINKS, "entmax(1.1)", "entmax(2.5)"])
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_a_process_that_sweeps_tiny_distances_ends(link, framework):
    chosen = f"kofn.links.{link}" if "(" in link else repr(link)
    script = f"""
import numpy as np, kofn
from support import Framework
from test_solver_ends import rows
made = Framework({framework!r})
chosen = {chosen}
rng = np.random.default_rng(1)
for dtype in ("float32", "float64"):
    for row in rows(rng, np.dtype(dtype).type):
        x = made.array(row, dtype)
        for k in (1e-3, 1.0, 2.5, row.size - 1e-3):
            for temperature in (1.0, 1e-30, 1e-38):
                p = made.numpy(kofn.soft_topk(x, k, link=chosen, temperature=temperature))
                assert (0 <= p).all() and (p <= 1).all(), (row, k, temperature, p)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=600)
