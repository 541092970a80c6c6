"""The searches of the CPU kernels end at their bounds, whatever the row, with a bracket's answer.

Their outer loops run here as Python, which counts their steps, on compiled passes over rows.
"""

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import kofn
from kofn.kernels.contract import KINDS, NORMAL, TWO_TAILS
from kofn.kernels.cpu.choice import search, truncated
from kofn.kernels.cpu.rows import balance
from places import as_program
from test_solver_ends import rows

TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def hard_rows(rng, dtype):
    """Also equal scores between the ends of the type, and scores all over it."""
    most, unit = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    yield from rows(rng, dtype)
    yield np.array([-most, unit, unit, unit, most], dtype)
    yield np.array([-most, *[-unit] * 20, 0, unit, 1, most], dtype)
    yield (rng.choice([-1, 1], 40) * np.exp2(rng.uniform(-120, 120, 40))).astype(dtype)


def creeping(low, high):
    """The least step there is: what a step that does not halve may come to."""
    return np.nextafter(low, high)


def halved_only(module, name, monkeypatch, dtype):
    """Have `module` try `creeping` but where it must halve; the list to which its steps go."""
    halving, steps = getattr(module, name), []

    def probe(low, high, *known):
        steps.append(known[-1])
        low, high = dtype(low), dtype(high)
        return dtype(halving(low, high, *known)) if known[-1] else creeping(low, high)

    monkeypatch.setattr(module, name, probe)
    monkeypatch.setattr(module, "SETTLE", 10**9)
    monkeypatch.setattr(module, "least_from", lambda x, t: x[x >= t].min())
    return steps


def hold_the_kth(x, k, t, above):
    """What `kth_largest` promises."""
    if above < 0:
        assert (x >= t).sum() == k
    else:
        assert t == np.sort(x)[-k]
        assert (x > t).sum() == above < k


def the_kth(x, k):
    return search.kth_largest.py_func(x, k, x.min(), x.max())


@TYPES
def test_the_kth_largest_score_takes_few_steps(monkeypatch, rng, dtype):
    probe, steps = search._probe, []

    def counted(low, high, *known):
        steps[-1] += 1
        return dtype(probe(dtype(low), dtype(high), *known))

    monkeypatch.setattr(search, "_probe", counted)
    monkeypatch.setattr(search, "least_from", lambda x, t: x[x >= t].min())
    for x in hard_rows(rng, dtype):
        for k in range(1, x.size):
            steps.append(0)
            hold_the_kth(x, k, *the_kth(x, k))
    assert 1 <= max(steps) < search.STEPS / 2


@TYPES
def test_the_kth_largest_score_is_found_by_halving_alone_before_the_bound(monkeypatch, rng, dtype):
    steps = halved_only(search, "_probe", monkeypatch, dtype)
    for x in hard_rows(rng, dtype):
        for k in (1, 2, x.size // 2, x.size - 1):
            steps.clear()
            hold_the_kth(x, k, *the_kth(x, k))
            assert len(steps) < search.STEPS
            assert sum(steps) <= 65


@TYPES
def test_at_its_bound_the_kth_largest_score_is_the_least_of_the_bracket(monkeypatch, rng, dtype):
    halved_only(search, "_probe", monkeypatch, dtype)
    monkeypatch.setattr(search, "STEPS", 7)
    for x in hard_rows(rng, dtype):
        for k in (1, 2, x.size // 2, x.size - 1):
            t, above = the_kth(x, k)
            assert (x >= t).sum() == k if above < 0 else (x >= t).sum() >= k
            assert above < 0 or (t in x and above == (x > t).sum())


@TYPES
def test_the_nucleus_is_found_by_halving_alone_before_the_bound(monkeypatch, rng, dtype):
    steps = halved_only(truncated, "_between", monkeypatch, dtype)
    monkeypatch.setattr(truncated, "reaching", truncated.reaching.py_func)
    monkeypatch.setattr(truncated, "mass_from", lambda x, e, t: float(e[x >= t].sum()))
    for x in hard_rows(rng, dtype):
        e = rng.random(x.size).astype(dtype)
        for share in (0.01, 0.5, 0.9):
            steps.clear()
            t = truncated.nucleus.py_func(x, e, share, x.min(), x.max())
            wanted = share * e.sum()
            assert e[x >= t].sum() >= wanted
            assert e[x > t].sum() < wanted
            assert len(steps) < truncated.STEPS
    monkeypatch.setattr(truncated, "STEPS", 7)
    for x in hard_rows(rng, dtype):
        e = np.ones_like(x)
        assert (x >= truncated.nucleus.py_func(x, e, 0.5, x.min(), x.max())).mean() >= 0.5


def test_the_last_that_fits_a_budget_is_found_before_the_bound(monkeypatch, rng):
    looks = []

    def cost_from(densities, costs, t):
        looks.append(t)
        return costs[densities >= t].sum()

    monkeypatch.setattr(truncated, "mass_from", cost_from)
    monkeypatch.setattr(truncated, "SETTLE", 10**9)
    bound = truncated.STEPS
    for densities in hard_rows(rng, np.float64):
        costs = rng.integers(1, 9, densities.size).astype(float)
        given = densities.min(), densities.max()
        for share in (0.05, 0.5, 0.99):
            budget = share * costs.sum()
            looks.clear()
            last = truncated.reaching.py_func(densities, costs, budget, *given)
            assert costs[densities > last].sum() < budget <= costs[densities >= last].sum()
            assert 1 <= len(looks) <= bound
            monkeypatch.setattr(truncated, "STEPS", 5)
            last = truncated.reaching.py_func(densities, costs, budget, *given)
            assert costs[densities >= last].sum() >= budget
            monkeypatch.setattr(truncated, "STEPS", bound)


def on_a_plateau(monkeypatch, kind, x, tails):
    """(θ, evaluations) of scores of which some are above 0, by `tails` as the logs of a link."""
    evaluations = []

    def counted(kind, z, upper, alpha):
        evaluations.append(z)
        return tails(kind, z, upper, alpha)

    monkeypatch.setattr(balance, "logs", counted)
    # By Python: after a translation in this process there is no native code to call (translate.py).
    monkeypatch.setattr(balance, "load", lambda _, i, size: x[i])
    monkeypatch.setattr(balance, "is_deleted", lambda score, size: False)
    row = SimpleNamespace(kind=kind, n=x.size, x=x.ctypes.data, size=8)
    theta = balance.balance.py_func(row, 0.0, 1.0, 2.0**-52, 0.0)
    per_round = 2 + x.size
    assert len(evaluations) % per_round == 0
    return theta, len(evaluations) // per_round


def test_plateaus_take_few_steps():
    """In another process: after a translation (translate.py) formulas have no native code."""
    run = as_program(__file__)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == 4 * len(TWO_TAILS)


def plateaus(kind):
    """θ is where the chances below it and above are alike, whatever the two tails are."""
    link = kofn.links.TABLE[KINDS[kind].link]
    for gap in (80.0, 1e4, 1e9, 2.0**40):
        x = np.array([-gap / 3, *[-gap / 3 - 1e-3] * 30, 2 * gap / 3])
        with pytest.MonkeyPatch.context() as patch:
            theta, rounds = on_a_plateau(patch, kind, x, balance.logs)
        near, far = link.log_cdf(np.array([-4.0, -16.0]))
        steep = far < 32 * near  # as no square of z is
        assert 1 <= rounds <= (balance.ROUNDS // 2 if steep else balance.FREELY)
        near = 1e-3 + 4 * np.spacing(gap)
        below, above = (
            np.logaddexp.reduce(link.log_cdf(x[:-1] - each)) - link.log_sf(x[-1:] - each)[0]
            for each in (theta - near, theta + near)
        )
        assert below > 0 > above
        print(rounds)


def steep(kind, z, upper, alpha):
    """log F = −e^|z|: Newton goes a temperature a step towards where both tails are alike."""
    size = min(abs(z), 700.0)
    return -math.exp(size), math.exp(size)


@pytest.mark.parametrize("gap", [80.0, 600.0, 1300.0])
def test_a_plateau_of_steep_tails_is_halved_before_the_bound(monkeypatch, gap):
    x = np.array([-0.9 * gap, -0.9 * gap, 0.1 * gap])
    theta, rounds = on_a_plateau(monkeypatch, NORMAL, x, steep)
    assert rounds < balance.ROUNDS
    assert abs(theta + 0.4 * gap) <= 1e-9 * gap
    for bound in (1, balance.FREELY // 2):
        monkeypatch.setattr(balance, "ROUNDS", bound)
        theta, rounds = on_a_plateau(monkeypatch, NORMAL, x, steep)
        assert rounds <= bound
        assert -0.9 * gap <= theta <= 0.1 * gap


@pytest.mark.full
def test_rows_that_reach_the_bound_of_evaluations_are_the_references():
    """A bound of four evaluations is compiled for it; hard rows reach that, not the usual one."""
    script = """
import sys
from pathlib import Path
from kofn.kernels.cpu.runtime import library
library.FILE = Path("none")  # so that this process compiles
import numpy as np
from kofn import links
from kofn.kernels.cpu.rows import forward, launch
from kofn.kernels.cpu.compiler import shipped
from kofn import soft_topk
from test_kernels_bounds import hard_rows

few = sys.argv[1] == "few"
if few:
    forward.ROUNDS, find = 1, shipped.find
    shipped.find = lambda code: None if code == launch.FORWARD else find(code)
x = np.random.default_rng(0).standard_t(2, (200, 300)).astype(np.float32)
k = np.full(200, 20.5, np.float32)
_, _, lost = launch.weights(x, k, np.full_like(k, 0.01), links.laplace)
assert lost == few
p = soft_topk(x, k, temperature=0.01, link="laplace")
exact = soft_topk(x.astype(float), k.astype(float), temperature=0.01, link="laplace")
assert np.abs(p - exact).max() <= 2e-6
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for bound in ("few", "usual"):
        subprocess.run([sys.executable, "-c", script, bound], env=environment, check=True)


if __name__ == "__main__":
    for kind in TWO_TAILS:
        plateaus(kind)
