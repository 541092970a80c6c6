"""Rows without entries, or without one that may be chosen, in every function, and their graphs."""

import numpy as np
import pytest
import torch

from calls import CALLS, array_of, flat, surroundings

LEARNED = [
    call for call in CALLS if call.learned and not call.name.endswith((".expand", ".to_torch"))
]
ROOMS = (".nn.", ".distributed.", ".estimators.")  # have tests of their own
OF_ROWS = [call for call in LEARNED if not any(room in call.name for room in ROOMS)]
PER_CLASS = ("bias", "weight", "margin")


def emptied(call, entries, rows):
    """The arguments of a call without entries in its rows, without rows, or both."""
    sizes, given = np.shape(call.arguments[call.first]), dict(call.arguments)
    ragged = "segment" in call.name
    for name, value in call.arguments.items():
        smallest = 1 if "segment_sparse" in call.name else 0
        if name == "k" and not isinstance(value, np.ndarray) and not entries:
            given[name] = smallest
        if name == "kept":  # a set for each row
            ids, ends = value
            ends = [each * entries for each in ends[: len(ends) if rows else 1]]
            given[name] = ids[: ends[-1]], ends
        if not isinstance(value, np.ndarray):
            continue
        value, of_classes = np.array(value), name in PER_CLASS
        per_entry = (
            value.shape[-1:] == sizes[-1:]
            if ragged
            else (value.ndim > 1 and name != "k") or of_classes
        )
        if not entries and per_entry and value.ndim:
            value = value[..., :0]
        if not entries and name == "ptr":
            value = value * 0
        if not rows and not ragged and value.ndim and value.shape[0] == sizes[0] and not of_classes:
            value = value[:0]
        if not entries and name == "k":
            value = value * 0
        if not entries and name == "target" and value.ndim == 1 and not ragged:
            value = value * 0 - 100  # the class that losses ignore
        given[name] = value
    return given


@pytest.mark.parametrize(
    ("entries", "rows"), [(0, 1), (1, 0), (0, 0)], ids=["no entries", "no rows", "neither"]
)
@pytest.mark.parametrize("call", OF_ROWS, ids=lambda call: call.name)
def test_an_empty_answer_has_the_graph_of_each_input(call, entries, rows):
    if "torch" not in call.frameworks or ("segment" in call.name and not rows):
        pytest.skip("no such call")
    given = emptied(call, entries, rows)
    made = {k: array_of("torch", v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
    for name in call.learned:
        if not isinstance(made[name], torch.Tensor):
            continue
        leaf = made[name].clone().requires_grad_()
        with surroundings(call):
            if call.public.endswith("topk_cross_entropy") and not entries:
                with pytest.raises(ValueError, match="k must be an integer in"):
                    call("torch", **made)
                return
            answers = call("torch", **{**made, name: leaf})
            floats = [each for each in flat(answers) if each.is_floating_point()]
            sum(each.sum() for each in floats).backward()
        assert leaf.grad is not None
        assert not leaf.grad.any()


SCORES = ("scores", "logits", "cosines")
_MASKED = [
    (call, how)
    for call in CALLS
    if call.learned and "torch" in call.frameworks and ".nn." not in call.name
    for how in ("mask", "-inf")
    if ("mask" in call.arguments if how == "mask" else call.first in SCORES)
]
MASKED = [
    pytest.param(*one, marks=pytest.mark.full if place % 3 else ())
    for place, one in enumerate(_MASKED)
]


@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
@pytest.mark.parametrize(
    ("call", "how"), MASKED, ids=lambda each: each if isinstance(each, str) else each.name
)
def test_a_wholly_masked_row_has_no_nan_on_the_way_back(call, how, monkeypatch):
    """Under detect_anomaly, which fails at a NaN that a `where` hides later on, too.

    Without the stack of each step, which it writes for half of the time.
    """
    monkeypatch.setattr(torch.fx.traceback, "format_stack", list)
    changed = "mask" if how == "mask" else call.first
    value = np.array(call.arguments[changed])
    value[: 4 if "segment" in call.name else 1] = False if how == "mask" else -np.inf
    given = {**call.made("torch"), changed: array_of("torch", value)}
    leaves = [given[name] for name in call.learned if isinstance(given[name], torch.Tensor)]
    for leaf in leaves:
        leaf.requires_grad_()
    with surroundings(call), torch.autograd.detect_anomaly():
        answers = [each for each in call("torch", **given) if each.requires_grad]
        total = sum(each[each.detach().isfinite()].sum() for each in answers)
        slopes = torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True)
        assert all(each.isfinite().all() for each in slopes)
        moving = [each.sum() for each in slopes if each.requires_grad]
        if moving:
            again = torch.autograd.grad(sum(moving), leaves, allow_unused=True)
            assert all(each is None or each.isfinite().all() for each in again)
