"""One bad entry in one process's part of one row: all other rows have the answers they had."""

import pytest
import torch
from torch import distributed

from calls import CALLS
from calls.data import X
from ranks import run_on_ranks

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)

BAD = {"NaN": torch.nan, "+inf": torch.inf, "-inf": -torch.inf, "masked": None}
ROW, CUT = 1, 3


def calls():
    return [call for call in CALLS if ".distributed." in call.name and not call.together]


def mine(values):
    """This process's part of what has a number per entry."""
    if not isinstance(values, torch.Tensor) or values.shape[-1:] != X.shape[-1:]:
        return values
    return values[..., :CUT] if distributed.get_rank() == 0 else values[..., CUT:]


def others_of(call, given):
    """The other rows of the answers, and of their gradient in the scores."""
    part = {name: mine(value) for name, value in given.items()}
    scores = part[call.first] = part[call.first].requires_grad_()
    here = [row for row in range(len(X)) if row != ROW]
    found = [each[here] for each in call("torch", **part)]
    for each in [each for each in found if each.requires_grad]:
        slope = torch.autograd.grad(torch.cos(each).sum(), scores, retain_graph=True)[0]
        found.append(slope[here])
    return [each.detach() for each in found]


def keep_other_rows():
    wrong = []
    for call in calls():
        wanted = others_of(call, call.made("torch"))
        # One in the part of each process, in turn.
        for number, (name, bad) in enumerate(BAD.items()):
            place, given = (0, -1)[number % 2], call.made("torch")
            if bad is not None:
                given[call.first][ROW, place] = bad
            elif "mask" in given:
                given["mask"][ROW, place] = False
            found = others_of(call, given)
            if not all(map(torch.allclose, found, wanted)):
                wrong.append(f"{call.name}, {name}")
    assert not wrong, wrong


def test_a_bad_entry_changes_no_other_row(tmp_path):
    assert calls()
    run_on_ranks(tmp_path / "store", 2, keep_other_rows)
