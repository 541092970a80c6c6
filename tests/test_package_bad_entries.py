"""One bad entry leaves every other row as it is, answer and gradient, in every public function.

A NaN, an infinity or a masked entry in one row, segment or matrix of a batch. Answers and gradients
keep their bits; those of functions in `TO_ROUNDING` may round anew.
"""

import numpy as np
import pytest
import torch

from calls import BOOLEAN, CALLS, FLOAT, Call, surroundings
from calls.call import array_of

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
TO_ROUNDING = {
    # Functions, by a part of the name: why other rows may round anew.
    "threshold": "one row that is hard, or bad, makes the gradients of all by another formula",
    "[smooth]": "thresholds",
    "assignment": "array code, which goes on until the last matrix is done",
    "kofn.losses.": "label smoothing leaves a batch with a bad entry to array code",
    "segment_": "array code of segments",
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
    """The answers, and on PyTorch the gradients of their sum by random weights."""
    given = {n: array_of(framework, a) for n, a in changed.items()}
    if framework != "torch" or not call.learned:
        return list(call(framework, **given))
    whole = {**call.made("torch"), **given}
    leaves = {name: whole[name].clone().requires_grad_() for name in call.learned}
    found = list(call("torch", **{**given, **leaves}))
    rng = np.random.default_rng(0)
    moving = [each for each in found if isinstance(each, torch.Tensor) and each.requires_grad]
    weights = [torch.as_tensor(rng.standard_normal(each.shape)).to(each) for each in moving]
    more = torch.autograd.grad(
        moving, list(leaves.values()), weights, allow_unused=True, materialize_grads=True
    )
    return found + list(more)


def moved(call, framework):
    """What of other rows changes, and by how much."""
    with surroundings(call), np.errstate(all="ignore"):
        before = answers(call, framework, {})
        for name, what, changed in cases(call):
            after = answers(call, framework, {name: changed})
            for number, (one, other) in enumerate(zip(before, after, strict=True)):
                one, other = others(call, one), others(call, other)
                if one is None:
                    continue
                if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
                    close = np.allclose(one, other, rtol=1e-12, atol=1e-12, equal_nan=True)
                    yield f"{name} {what}: answer {number}", close


ROWS = [
    call
    for call in CALLS
    if (not call.together or call.together == ("segments",))
    and "ptr" not in call.arguments
    and not any(part in call.name for part in NOT_ROWS)
]


def check(call, framework):
    to_rounding = framework == "jax" or any(part in call.name for part in TO_ROUNDING)
    wrong = [what for what, close in moved(call, framework) if not (to_rounding and close)]
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


def test_an_entry_that_reaches_another_row_is_seen():
    x = np.array([[0.3, 1.0], [2.0, 0.1], [0.5, 0.5]])
    for reach, seen in ((lambda x: x.max(), True), (lambda x: x.max(-1, keepdims=True), False)):
        call = Call("toy", lambda x, reach=reach: x - reach(x), {"x": x}, frameworks=("numpy",))
        assert bool(list(moved(call, "numpy"))) == seen
