"""One bad entry leaves every other row as it is, answer and gradient, in every public function.

A NaN, an infinity or a masked entry in one row, segment or matrix of a batch. Answers and gradients
keep their bits, but for what `TO_ROUNDING` names.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import kofn
from calls import BOOLEAN, CALLS, FLOAT, Call, surroundings
from calls.call import array_of
from kofn.links.table import TABLE

BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
NOT_ROWS = {
    # Why an argument or a function is left out.
    "kofn.nn.": "modules: tokens meet in routers, losses and statistics",
    "kofn.integrations.": "modules: tokens meet in routers, losses and statistics",
    "kofn.distributed.": "one process; shards have tests of their own",
    "kofn.estimators.study": "one problem",
    "from_marginals": "refuses a sum that is no whole number, whichever row it is of",
    "to_torch": "torch refuses values out of the support, whichever row they are in",
}
GRADIENTS, ALL = "gradients", "answers and gradients"
# Of which functions other rows may round anew, in what, and why (docs/behaviour.md says it).
_FORMULA = "one hard or bad row makes the gradients of all by the formula for such rows"
_SMOOTHED = "a smoothed label beside a bad entry is left to array code, with its batch"
TO_ROUNDING = {
    "kofn.soft_topk_threshold": (GRADIENTS, _FORMULA),
    "kofn.segment_soft_topk_threshold": (GRADIENTS, _FORMULA),
    "kofn.quantile[smooth]": (GRADIENTS, _FORMULA),
    "kofn.segment_quantile[smooth]": (GRADIENTS, _FORMULA),
    "kofn.soft_assignment[rounds]": (GRADIENTS, _FORMULA),
    "kofn.soft_assignment_prices": (GRADIENTS, "array code, which solves all matrices together"),
    "kofn.losses.softmax_loss": (ALL, _SMOOTHED),
    "kofn.losses.sparsemax_loss": (ALL, _SMOOTHED),
    "kofn.losses.entmax_loss": (ALL, _SMOOTHED),
    "kofn.losses.topk_loss": (ALL, _SMOOTHED),
    "kofn.losses.sparse_softmax_loss": (ALL, _SMOOTHED),
    "kofn.losses.am_softmax": (ALL, _SMOOTHED),
    "kofn.losses.arcface": (ALL, _SMOOTHED),
}
SHARED = {"q", "weight", "margin", "bias"}  # arguments of all rows
ONE = 1  # the row, segment or matrix with the bad entry


def rows_of(call):
    return call.arguments[call.first].shape[0]


def cases(call):
    """(argument, what is bad, the argument with it)."""
    segments = call.arguments.get("segment_ids")
    for name in call.arrays:
        value = call.arguments[name]
        of_entries = segments is not None and value.shape[:1] == segments.shape
        in_rows = value.ndim > 0 and value.shape[0] == _count(call) and name not in SHARED
        if name == "segment_ids" or not (of_entries or in_rows):
            continue
        place = (int(np.flatnonzero(segments == ONE)[0]),) if of_entries else (ONE,)
        place += (0,) * (value.ndim - 1)
        if call.kind_of(name) == BOOLEAN and name == "mask":
            changed = value.copy()
            changed[place] = False
            yield name, "masked", changed
        if call.kind_of(name) == FLOAT:
            for what, bad in BAD.items():
                changed = value.copy()
                changed[place] = bad
                yield name, what, changed


def _count(call):
    return call.arguments.get("num_segments") or rows_of(call)


def others(call, array):
    """An array without what belongs to the row, segment or matrix with the bad entry."""
    array = array.detach() if isinstance(array, torch.Tensor) else array
    array = np.asarray(array)
    segments = call.arguments.get("segment_ids")
    if segments is not None and segments.size in array.shape:
        axis = array.shape.index(segments.size)
        return np.compress(segments != ONE, array, axis)
    if _count(call) not in array.shape:
        return None
    axis = array.shape.index(_count(call))
    return np.compress(np.arange(array.shape[axis]) != ONE, array, axis)


def answers(call, framework, changed):
    """(The answers, and on PyTorch the gradients of their sum by random weights; how many)."""
    given = {n: array_of(framework, a) for n, a in changed.items()}
    if framework != "torch" or not call.learned:
        found = list(call(framework, **given))
        return found, len(found)
    whole = {**call.made("torch"), **given}
    leaves = {name: whole[name].clone().requires_grad_() for name in call.learned}
    found = list(call("torch", **{**given, **leaves}))
    rng = np.random.default_rng(0)
    moving = [each for each in found if isinstance(each, torch.Tensor) and each.requires_grad]
    weights = [torch.as_tensor(rng.standard_normal(each.shape)).to(each) for each in moving]
    more = torch.autograd.grad(
        moving, list(leaves.values()), weights, allow_unused=True, materialize_grads=True
    )
    return found + list(more), len(found)


def moved(call, framework):
    """What of other rows changes: (where, whether it is a gradient, whether it is rounding)."""
    with surroundings(call), np.errstate(all="ignore"):
        before, count = answers(call, framework, {})
        for name, what, changed in cases(call):
            after, _ = answers(call, framework, {name: changed})
            for number, (one, other) in enumerate(zip(before, after, strict=True)):
                one, other = others(call, one), others(call, other)
                if one is None:
                    continue
                if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
                    close = np.allclose(one, other, rtol=1e-12, atol=1e-12, equal_nan=True)
                    yield f"{name} {what}: answer {number}", number >= count, close


ROWS = [
    call
    for call in CALLS
    if (not call.together or call.together == ("segments",))
    and "ptr" not in call.arguments
    and not any(part in call.name for part in NOT_ROWS)
]


def check(call, framework):
    what_may = ALL if framework == "jax" else TO_ROUNDING.get(call.name, ("nothing",))[0]
    wrong = []
    for where, gradient, close in moved(call, framework):
        may = what_may == ALL or (what_may == GRADIENTS and gradient)
        if not (may and close):
            wrong.append(where)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("call", ROWS, ids=lambda call: call.name)
def test_a_bad_entry_stays_in_its_row(call):
    """Answers, and gradients where there are any."""
    check(call, "torch" if "torch" in call.frameworks else call.frameworks[0])


@pytest.mark.full
@pytest.mark.parametrize("framework", ["numpy", "jax"])
@pytest.mark.parametrize("call", ROWS, ids=lambda call: call.name)
def test_a_bad_entry_stays_in_its_row_of_other_arrays(call, framework):
    if framework in call.frameworks:
        check(call, framework)


@pytest.mark.parametrize("kernels", ["on", "reference"])
@pytest.mark.parametrize("n", [5, 600])
@pytest.mark.parametrize("link", sorted(TABLE))
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_infinite_scores_keep_their_weights_beside_a_nan(framework, link, n, kernels, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", kernels)
    x = np.full(n, 1.0, np.float32)
    x[:4] = np.nan, np.inf, np.inf, -np.inf
    for function, share in (
        (lambda x: kofn.soft_topk(x, 1, link=link), 0.5),
        (lambda x: kofn.hard_topk(x, 1), 1.0),
    ):
        p = np.asarray(function(array_of(framework, x)))
        assert p[1] == share
        assert p[2] == 1 - share
        assert p[3] == 0
        assert np.isnan(p[[0, *range(4, n)]]).all()


def test_an_entry_that_reaches_another_row_is_seen():
    x = np.array([[0.3, 1.0], [2.0, 0.1], [0.5, 0.5]])
    for reach, seen in ((lambda x: x.max(), True), (lambda x: x.max(-1, keepdims=True), False)):
        call = Call("toy", lambda x, reach=reach: x - reach(x), {"x": x}, frameworks=("numpy",))
        assert bool(list(moved(call, "numpy"))) == seen


def test_what_may_round_is_there():
    assert set(TO_ROUNDING) <= {call.name for call in ROWS}


@pytest.mark.parametrize(
    "call",
    [call for call in ROWS if TO_ROUNDING.get(call.name, ("",))[0] == ALL],
    ids=lambda call: call.name,
)
def test_without_smoothing_losses_keep_their_bits(call):
    given = {n: a for n, a in call.arguments.items() if n != "label_smoothing"}
    wrong = list(moved(replace(call, arguments=given), "torch"))
    assert not wrong, wrong
