"""The start that `approach` gives to short rows of a bounded link; others hold their weights."""

import re

import numpy as np
import pytest

from kofn import links
from kofn.kernels import contract
from kofn.kernels.contract import BOUNDED, is_bounded
from kofn.kernels.cpu.compiler import machine, now
from kofn.kernels.cpu.rows import launch, layout
from kofn.kernels.cpu.rows.formulas import edge
from kofn.kernels.cpu.rows.lanes import FOUND, OPEN, SPECIAL
from kofn.kernels.cpu.runtime import native

LINKS = {"linear": links.linear, "entmax": links.entmax(1.5), "entmax 1.3": links.entmax(1.3)}
ALPHAS = {"linear": 2.0, "entmax": 1.5, "entmax 1.3": 1.3}


def approached(link, size, n, k, rng, may=0.0):
    """(scores, lanes before, lanes after) of a group of rows, whose brackets are wide."""
    code = launch.pass_code(
        "interleaved", layout.APPROACH, contract.kind_of(LINKS[link].inner), size
    )
    number = np.dtype(f"f{size}").type
    entries = np.zeros((n, layout.PLANES, layout.LANES), number)
    x = entries[:, layout.SCORE] = rng.standard_normal((n, layout.LANES)).astype(number)
    lanes = np.zeros(1, layout.LANE)
    lane = lanes[0]
    lane["state"], lane["k"], lane["alpha"] = OPEN, k, ALPHAS[link]
    lane["temperature"] = rng.uniform(0.2, 2, layout.LANES)
    lane["per_t"] = 1 / lane["temperature"]
    lane["anchor"] = x.mean(0)
    lane["low"], lane["high"] = -60.0, 60.0
    lane["state"][3], lane["strange"][5] = SPECIAL, 1.0
    before = lanes.copy()[0]
    native.function(code)(entries.ctypes.data, 0, 0, n, lanes.ctypes.data, may, 0.0, 0.0, 0.0, 0.0)
    return x, before, lane


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("link", LINKS)
def test_open_rows_start_where_their_weights_nearly_add_up(link, size, rng):
    """Most of them do, from the mean of their scores; others were far away."""
    origin = edge(contract.kind_of(LINKS[link].inner), ALPHAS[link])
    for n, k in (8, 1.0), (8, 3.0), (32, 4.0), (64, 0.5), (112, 100.0):
        x, before, lane = approached(link, size, n, k, rng)
        moved = (lane["state"] == OPEN) & (lane["strange"] == 0)
        t = lane["temperature"]
        for anchor, near in (before["anchor"], False), (lane["anchor"], True):
            total = LINKS[link].cdf((x - anchor) / t + origin).sum(0)[moved]
            assert (np.median(np.abs(total - k)) < 5e-3 * k) == near
        assert np.array_equal(lane["anchor"][~moved], before["anchor"][~moved])
        for end in "low", "high":  # they are where they were
            was = before["anchor"] + t * before[end]
            np.testing.assert_allclose(lane["anchor"] + t * lane[end], was)


@pytest.mark.parametrize("link", LINKS)
def test_a_threshold_that_is_found_makes_weights_add_up(link, rng):
    """Most are, the others are left open; ΣF′ is that of the last evaluation."""
    inner = LINKS[link]
    origin = edge(contract.kind_of(inner.inner), ALPHAS[link])
    for n, k in (8, 1.0), (8, 3.0), (32, 4.3), (64, 0.5), (112, 100.0):
        x, _, lane = approached(link, 4, n, k, rng, may=1.0)
        t, found = lane["temperature"], lane["state"] == FOUND
        assert not found[[3, 5]].any()
        assert found.sum() >= layout.LANES - 4
        z = (x - lane["anchor"]) / t - lane["delta"] + origin
        np.testing.assert_allclose(inner.cdf(z).sum(0)[found], k, rtol=1e-6)
        np.testing.assert_allclose(lane["weight"][found], inner.pdf(z).sum(0)[found], rtol=2e-3)


def test_passes_of_bounded_rows_abreast_have_it_in_the_place_of_what_they_do_not_need():
    for kind in layout.SERVED:
        names = [code.name for code in launch.passes_of(launch.FORWARD, kind, 4, 8, False)]
        assert (names[layout.FIRST_EVALUATION] == layout.APPROACH) == is_bounded(kind)


@pytest.mark.parametrize("kind", sorted(BOUNDED))
def test_lanes_are_vectors(kind):
    code = launch.pass_code("interleaved", layout.APPROACH, kind, 4)
    text = str(machine.optimised(now.translated(code), code.symbol))
    assert " x float>" in text
    assert not re.findall(r"= f(?:add|sub|mul|cmp|div)[a-z ]* float ", text)


@pytest.mark.parametrize("code", launch.WORK)
def test_weights_of_bounded_links_are_abreast_up_to_a_length_of_their_own(code):
    """Their losses, for which θ is found first, and their way back are not, if it is greater."""
    wide = native.has_wide_vectors()
    for kind in layout.SERVED:
        more = code is launch.FORWARD and is_bounded(kind) and not wide
        longest = layout.SHORT_BACK if code is launch.AFTER else layout.SHORT[wide]
        longest = layout.SHORT_BOUNDED[wide] if more else longest
        assert launch.abreast_up_to(code, kind) == longest
        for n in longest, longest + 1:
            assert (launch.plan_of(code, kind, 4, n, False, True).group < 0) == (n <= longest)
            names = [each.name for each in launch.passes_of(code, kind, 4, n, False)]
            if code in (launch.FORWARD, launch.COMPARE):
                assert ("bring" in names) == (n <= longest)
