"""The searches of the GPU's kernels end at their bounds, whatever the row: counted by Triton's
interpreter, which runs their loops as Python.
"""

import numpy as np
import pytest
import torch
import triton.language as tl

import kofn
from kofn.kernels.gpu.rows import mend, one_program, search
from support import LINKS

INF = np.inf
UNIT = float(np.finfo("float32").smallest_subnormal)
HARD = (
    [*[0.0] * 7, *[0.003] * 9, 1.0],
    [-1e38, *[-UNIT] * 7, *[UNIT] * 8, 1e38],
    [*np.exp2(np.linspace(-149, 120, 17))],
    [*[1e30] * 8, *[1e30 + 1e23] * 8, -1e9],
    [INF, *[-INF] * 8, *np.linspace(-1e-3, 1e-3, 8)],
)

SOME = [pytest.param(link, marks=() if link == "logistic" else pytest.mark.full) for link in LINKS]


def counted(monkeypatch, module, name):
    """The list that has an entry for each call of a function of the kernels."""
    kernel, calls = getattr(module, name), []

    def call(*given):
        calls.append(1)
        return kernel(*given)

    monkeypatch.setattr(module, name, call)
    return calls


def missed(link, temperature):
    """By which part of k the sums of the hard rows miss it; their weights are weights."""
    x, k = torch.tensor(np.array(HARD, np.float32)), torch.tensor([1e-3, 2.5, 8.0, 8.9, 3.1])
    k = k.clamp(max=1) if link == "exponential" else k
    t = torch.full((len(HARD),), temperature)
    p = kofn.soft_topk(x, k, link=link, temperature=t)
    assert ((p >= 0) & (p <= 1)).all()
    return (abs(p.double().sum(-1) - k) / k).numpy()


@pytest.mark.parametrize("temperature", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("link", SOME)
def test_searches_end_within_their_bound(link, temperature, monkeypatch):
    steps = counted(monkeypatch, one_program, "advance")
    assert missed(link, temperature).max() <= 3e-6
    assert len(steps) <= search.ROUNDS.value


@pytest.mark.parametrize("link", SOME)
def test_a_search_at_its_bound_is_checked_and_mended(link, monkeypatch):
    monkeypatch.setattr(search, "ROUNDS", tl.constexpr(1))
    monkeypatch.setattr(mend, "is_doubtful", lambda row, s: s.rounds >= 1)
    steps = counted(monkeypatch, one_program, "advance")
    halved = counted(monkeypatch, mend, "judge")
    assert missed(link, 1.0).max() <= 3e-6
    assert len(steps) == 1 < len(halved) <= mend.ENOUGH.value + 1


@pytest.mark.parametrize("link", SOME)
@pytest.mark.parametrize("enough", [pytest.param(None, marks=pytest.mark.full), 3])
def test_bisection_ends_at_its_bound_though_nothing_is_found(link, enough, monkeypatch):
    """All its rounds are enough for θ."""
    judge = mend.judge

    def never(kind, row, at, sums):
        found, _, hard, excess = judge(kind, row, at, sums)
        return found & False, found & False, hard, excess

    monkeypatch.setattr(mend, "is_doubtful", lambda row, s: s.rounds >= 0)
    monkeypatch.setattr(mend, "judge", never)
    if enough:
        monkeypatch.setattr(mend, "ENOUGH", tl.constexpr(enough))
    halved = counted(monkeypatch, mend, "halve")
    found = missed(link, 1.0)
    assert len(halved) == mend.ENOUGH.value + 1
    assert enough or found.max() <= 3e-6
