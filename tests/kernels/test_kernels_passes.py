"""Sums over the weights of rows by a pass that stands beside an operation, here in this file."""

import re

import numpy as np
import pytest
import torch

from kofn import links, soft_topk
from kofn.kernels.cpu import every
from kofn.kernels.cpu.compiler import digests, machine, now
from kofn.kernels.cpu.rows import launch, layout, passes
from kofn.kernels.cpu.rows.passes import Pass
from kofn.links import table
from kofn.links.vocabulary import log_chance, log_rest, where
from support import LINKS

EVERY = [*(table.TABLE[name] for name in LINKS), links.entmax(1.3)]
INF, NAN = float("inf"), float("nan")


def spread(tail, upper, slope):
    """Entropy of a coin, and its variance less the weight where it is certain."""
    entropy = -tail * log_chance(tail) - (1.0 - tail) * log_rest(tail)
    return entropy, tail * (1.0 - tail) - where(upper, 0.25, 0.0) + 0.0 * slope


def variance(tail, upper, slope):
    return tail * (1.0 - tail), 0.0 * slope


SPREAD = Pass(__name__, "SPREAD", spread)
passes.PASSES.remove(SPREAD)  # those of kofn alone are compiled with it


def rows(rng, dtype):
    x = rng.standard_normal((7, 40)) * 3
    x[1, 3], x[2, 5], x[3, 7], x[4], x[6, :3] = INF, -INF, NAN, -INF, INF
    k = np.array([5.5, 7.5, 30.5, 3.0, 0.0, 40.0, 1.5])
    return x.astype(dtype), k.astype(dtype), np.array([0.5, 1, 2, 1, 1, 0.3, 1], dtype)


def wanted(p):
    p = np.asarray(p, np.float64)
    with np.errstate(all="ignore"):
        q = np.minimum(p, 1 - p)
        entropy = np.where(q > 0, -q * np.log(q) - (1 - q) * np.log1p(-q), 0 * q)
    return np.stack([entropy.sum(-1), (q * (1 - q) - np.where(p > 0.5, 0.25, 0)).sum(-1)])


@pytest.mark.parametrize(
    ("link", "dtype"),
    [
        pytest.param(
            link, dtype, marks=() if (place + (dtype == "float32")) % 4 == 0 else pytest.mark.full
        )
        for place, link in enumerate(EVERY)
        for dtype in ("float32", "float64")
    ],
    ids=str,
)
def test_sums_are_those_of_the_weights(link, dtype, rng):
    x, k, t = rows(rng, dtype)
    p = soft_topk(x, k, temperature=t, link=link)
    theta, lost = launch.threshold(x, k, t, link.inner)
    assert not lost
    got = launch.sums(SPREAD, x, theta, k, t, link.inner)
    right = wanted(p)
    assert np.array_equal(np.isnan(got), np.isnan(right))
    near = 2e-5 if dtype == "float32" else 1e-12
    assert np.nanmax(np.abs(got - right)) <= near


def test_of_long_rows_and_half_precision_too(rng):
    x = rng.standard_normal((1, 70_001)).astype(np.float32)
    theta, _ = launch.threshold(x, 900.0, 1.0, links.logistic)
    got = launch.sums(SPREAD, x, theta, 900.0, 1.0, links.logistic)
    right = wanted(soft_topk(x.astype(float), 900.0))
    assert np.abs(got / right - 1).max() <= 1e-5
    halves = torch.tensor(x[:, :300]).bfloat16()
    theta, _ = launch.threshold(halves, 9.5, 1.0, links.logistic)
    got = launch.sums(SPREAD, halves, theta, 9.5, 1.0, links.logistic)
    right = wanted(soft_topk(halves.double(), 9.5))
    assert got.dtype == torch.float32
    assert np.abs(got.numpy() / right - 1).max() <= 1e-5


def test_its_loop_is_vectors_of_the_precision_it_is_given():
    code = SPREAD.codes(0, 4)[layout.ENTRIES]
    text = str(machine.optimised(now.translated(code), code.symbol))
    assert " x float>" in text
    assert not re.search(" x double>", text)


def test_passes_are_compiled_with_all_others(monkeypatch):
    monkeypatch.setattr(every, "PASSES", [SPREAD])
    codes = {code.symbol for code in every.functions(layout.SERVED, (4, 8))}
    assert {code.symbol for code in SPREAD.codes(layout.SERVED[0], 4)} <= codes
    assert "kofn_rows_pass_loops_entries_test_kernels_passes_SPREAD_0_float32" in codes


def test_a_pass_has_the_digest_of_its_formula(monkeypatch):
    monkeypatch.setattr(passes, "PASSES", [])
    code = SPREAD.codes(0, 4)[0]
    before = digests.of_code(code)
    other = Pass(__name__, "OTHER", spread)
    assert [other] == passes.PASSES
    monkeypatch.setitem(globals(), "OTHER", other)
    assert digests.of(*digests.made(code)) == digests.of(*digests.made(other.codes(0, 4)[0]))
    monkeypatch.setitem(globals(), "OTHER", Pass(__name__, "OTHER", variance))
    changed = digests.of_code(other.codes(0, 4)[0])
    assert before
    assert changed not in ("", before)
