"""Short rows whose θ and weights are found in the precision of their scores; others are left."""

import itertools
import re

import numpy as np
import pytest
from scipy.special import ndtri

from kofn.kernels import contract
from kofn.kernels.contract import BOUNDED
from kofn.kernels.cpu.compiler import machine, now
from kofn.kernels.cpu.rows import launch, layout
from kofn.kernels.cpu.runtime import native
from kofn.kernels.cpu.short.opening import EVALUATIONS, OWN

INF, NAN = np.inf, np.nan
ALPHAS = dict(zip(contract.OF_ALPHA, (*contract.SPECIAL_ALPHA, contract.GENERAL), strict=True))
SHAPES = (2, 0.7), (8, 1.0), (8, 3.0), (33, 31.5), (64, 0.5), (112, 14.0), (200, 190.0)


def link_of(kind):
    return contract.link_of(kind, ALPHAS.get(kind, 0.0))


def sought(kind, x, k, temperature=1.0):
    """(weights, lanes) after the usual steps for the rows of x, one per lane."""
    inner, n, number = link_of(kind), x.shape[-1], x.dtype.type
    entries = np.zeros((n, layout.PLANES, layout.LANES), number)
    entries[:, layout.SCORE] = x.T
    lanes = np.zeros(1, layout.LANE)
    lane = lanes[0]
    lane["k"], lane["temperature"], lane["alpha"] = k, temperature, ALPHAS.get(kind, 0.0)
    lane["per_t"] = 1 / lane["temperature"]
    with np.errstate(all="ignore"):
        share = np.minimum(lane["k"] / n, 0.5 + 0.5 * lane["k"] / n)
        lane["bell"], lane["own"] = ndtri(share), inner.quantile(share)
        lane["end"] = inner.quantile(lane["k"] / n)
        single = (kind in BOUNDED) & (lane["k"] <= 1)
        lane["alone"] = np.where(single, inner.quantile(lane["k"]), NAN)
    at = entries.ctypes.data
    for name in "open_usual", "usual":
        code = launch.pass_code("interleaved", name, kind, x.itemsize)
        native.function(code)(at, 0, 0, n, lanes.ctypes.data, *(0.0,) * 5)
    return entries[:, layout.COTANGENT].T.copy(), lane


def weights(kind, x, lane):
    """F at the θ that was found, in float64."""
    z = (x.astype("f8") - lane["solved_hi"][:, None]) - lane["solved_lo"][:, None]
    inner = link_of(kind)
    return inner.cdf(z / lane["temperature"][:, None])


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("kind", layout.SERVED)
def test_weights_of_usual_rows_are_those_at_their_threshold_and_add_up(kind, size, rng):
    eps = np.finfo(f"f{size}").eps
    for n, k in SHAPES:
        x = rng.standard_normal((layout.LANES, n)).astype(f"f{size}")
        temperature = rng.uniform(0.3, 2, layout.LANES)
        p, lane = sought(kind, x, k, temperature)
        solved = lane["solved"] > 0
        # Weights that are powers are off by more, so that their sum may miss k.
        assert solved.sum() >= layout.LANES - (6 if kind == contract.POWER else 2)
        total = p.astype("f8").sum(-1)[solved]
        np.testing.assert_allclose(total, k, rtol=2.5 * 2.0**-23 if size == 4 else 5e-14)
        expected = weights(kind, x, lane)
        # z is counted in the precision of the scores, and its last digits are the weights'.
        reach = 1 + np.abs(x).max() / temperature.min()
        np.testing.assert_allclose(p[solved], expected[solved], rtol=0, atol=2 * reach * eps)


@pytest.mark.parametrize("kind", layout.SERVED)
def test_a_few_weights_that_are_not_at_an_end_take_all_that_a_sum_misses(kind, rng):
    """Where all others are 1, a sum that is k up to roundings of k says little of them."""
    for n, spread in itertools.product((8, 128), (1e-4, 1e-3, 3e-2)):
        rows = np.float32(rng.standard_normal((64, layout.LANES, n)) * spread)
        k = np.float32(n - spread * 10 ** rng.uniform(-2, 1.5, (64, layout.LANES)))
        for x, each in zip(rows, k, strict=True):
            p, lane = sought(kind, x, each)
            solved = lane["solved"] > 0
            q, true = sought(kind, x.astype("f8"), each)
            solved &= true["solved"] > 0
            np.testing.assert_allclose(p[solved], q[solved], rtol=0, atol=5e-7)


@pytest.mark.parametrize("kind", layout.HAVE_ROUGH)
@pytest.mark.parametrize(("n", "k"), [(16, 15.75), (20, 19.75), (64, 61.5), (112, 109.5)])
def test_what_rough_sums_round_shuts_no_threshold_out(kind, n, k, rng):
    """All but one or two of the weights are next to 1 there: the search would have to have them."""
    x = rng.standard_normal((20, layout.LANES, n)).astype("f4")
    solved = [sought(kind, rows, k)[1]["solved"] > 0 for rows in x]
    assert np.mean(solved) > 0.99


@pytest.mark.parametrize("kind", layout.SERVED)
def test_a_row_has_the_bits_that_it_has_among_others(kind, rng):
    """Rows that take more steps are beside it, and some that are left."""
    for n, k in (8, 1.0), (40, 5.0):
        x = rng.standard_normal((layout.LANES, n)).astype("f4")
        p, lane = sought(kind, x, k)
        theta, solved = lane["solved_hi"].copy(), lane["solved"].copy()
        for r in 0, 7, layout.LANES - 1:
            others = (rng.standard_normal(x.shape) ** 3 * 30).astype("f4")
            others[r], others[r - 1, 0] = x[r], NAN
            q, lane = sought(kind, others, k)
            assert np.array_equal(p[r], q[r]) or not solved[r]
            assert lane["solved"][r] == solved[r]
            assert lane["solved_hi"][r] == theta[r] or not solved[r]


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("kind", layout.SERVED)
def test_what_is_unusual_is_left_to_the_search(kind, size, rng):
    n, number = 24, np.dtype(f"f{size}").type
    x = rng.standard_normal((layout.LANES, n)).astype(number)
    x[0, 3], x[1, 3], x[2, 3], x[3, 3] = NAN, INF, -INF, np.finfo(number).min
    x[4, 3], x[5] = -1e9, -INF
    k, temperature = np.full(layout.LANES, 3.0), np.ones(layout.LANES)
    k[6], k[7], k[8], k[9], k[10] = 0, n, NAN, -1, n + 1
    temperature[11], temperature[12], temperature[13] = 1e-30, NAN, INF
    _, lane = sought(kind, x, k, temperature)
    assert not lane["solved"][:13].any()
    assert lane["solved"][14:].all()


@pytest.mark.parametrize("kind", layout.SERVED)
def test_few_evaluations_are_enough(kind, rng):
    x = rng.standard_normal((layout.LANES, 64)).astype("f4")
    for k in 1.0, 8.0:
        _, lane = sought(kind, x, k)
        data = lane.tobytes()
        own = np.frombuffer(data, "f4", len(layout.OF_USUAL) * layout.LANES, OWN)
        evaluations = own.reshape(-1, layout.LANES)[EVALUATIONS]
        assert evaluations.min() >= 1
        assert np.median(evaluations) <= 4


@pytest.mark.parametrize("n", [32, 128])
def test_the_greatest_scores_of_four_parts_bound_the_threshold_of_sparsemax_closely(n, rng):
    """From the greatest alone it takes two exact evaluations or more in most groups."""
    most = []
    for _ in range(20):
        _, lane = sought(contract.LINEAR, rng.standard_normal((layout.LANES, n)).astype("f4"), 1.0)
        own = np.frombuffer(lane.tobytes(), "f4", len(layout.OF_USUAL) * layout.LANES, OWN)
        most.append(own.reshape(-1, layout.LANES)[EVALUATIONS].max())
    assert np.mean(most) < 1.3


@pytest.mark.parametrize("kind", layout.SERVED)
def test_lanes_are_vectors_of_the_precision_of_the_scores(kind):
    """But θ as two numbers, in the end, which is the logarithm of a factor in some links."""
    for name in ("open_usual", "usual", *["approach"] * (kind in layout.HAVE_ROUGH)):
        module = "loops" if name == "approach" else "interleaved"
        code = launch.pass_code(module, name, kind, 4)
        text = str(machine.optimised(now.translated(code), code.symbol))
        assert " x float>" in text
        wide = re.findall(r"= f(?:div|mul)[^\n]* x double>", text)
        assert len(wide) <= (40 if kind in contract.OCTAVES else 2), name
        assert not re.search(r"llvm.sqrt[^\n]* x double>", text), name


@pytest.mark.parametrize("code", launch.WORK)
def test_rows_are_abreast_up_to_a_length(code):
    """That of the way back is shorter."""
    for kind in (*layout.SERVED, *[launch.LIKELY] * (code is launch.COMPARE)):
        longest = launch.abreast_up_to(code, kind)
        assert (longest == layout.SHORT_BACK) == (code is launch.AFTER)
        assert longest <= layout.SHORT
        for n in longest, longest + 1:
            assert (launch.plan_of(code, kind, 4, n, False, True).group < 0) == (n <= longest)
            names = [each.name for each in launch.passes_of(code, kind, 4, n, False)]
            if code in (launch.FORWARD, launch.COMPARE):
                assert ("bring" in names) == (n <= longest)
