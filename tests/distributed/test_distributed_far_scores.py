"""kofn.distributed on scores of many magnitudes, +inf and NaN: answers and gradients of whole rows.

The ordinary tests take one process, whose rows go the way of shards too.
"""

import pytest
import torch
from torch import distributed

import kofn
import test_distributed
from kofn import losses
from ranks import joined, run_on_ranks
from support import LINKS
from test_distributed import mine

pytestmark = test_distributed.pytestmark

LABELS = torch.tensor([0, 5, 20])
SMOOTHED = dict(label_smoothing=0.1, reduction="none")


def loss_of(name):
    return lambda f, x: getattr(losses if f is kofn else f, name)(x, LABELS, **SMOOTHED)


MAPS = {
    **{link: lambda f, x, link=link: f.soft_topk(x, 3, link=link) for link in LINKS},
    "hard": lambda f, x: f.soft_topk(x, 3, hard=True),
    "threshold": lambda f, x: f.soft_topk_threshold(x, 3),
    "sum": lambda f, x: f.soft_topk_sum(x, 3),
    "softmax": lambda f, x: f.softmax(x),
    "sparsemax": lambda f, x: f.sparsemax(x),
    "entmax": lambda f, x: f.entmax(x, 1.3),
    "marginals": lambda f, x: f.KSubset(x, 3).marginals(),
    "log_partition": lambda f, x: f.KSubset(x, 3).log_partition(),
    "softmax_loss": loss_of("softmax_loss"),
    "sparsemax_loss": loss_of("sparsemax_loss"),
    "topk_loss": lambda f, x: (losses if f is kofn else f).topk_loss(x, LABELS, reduction="none"),
}
V = torch.linspace(-1, 1, 40, dtype=torch.float64).repeat(3, 1)


def differentiated(name, f, x, part):
    """The answer, and the gradient of a weighted sum of what is finite."""
    x = part(x).clone().requires_grad_()
    answer = MAPS[name](f, x)
    v = (part(V) if answer.ndim == 2 else V[:, 7]).to(answer.dtype)
    torch.where(answer.isfinite(), answer * v, 0.0).sum().backward()
    return answer.detach(), x.grad


def whole(x):
    return x


def magnitudes():
    """Scores from 1e-30 to 1e30 in one row, from either end; and a third of them all but inf."""
    x = test_distributed.rows(1.0)[:, 0].double()
    power = torch.linspace(-30, 30, 40, dtype=torch.float64)
    most = torch.finfo(torch.float32).max / 64  # smoothing sums up to 40 of them
    return [x * 10**power, x * 10**-power, torch.where(torch.arange(40) % 3 == 0, most, x)]


def many_magnitudes():
    wrong = []
    for number, x in enumerate(magnitudes()):
        for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-11)):
            for name in MAPS:
                wanted = differentiated(name, kofn, x.to(dtype), whole)
                found = differentiated(name, kofn.distributed, x.to(dtype), mine)
                for ours, theirs, what in zip(found, wanted, ("answer", "gradient"), strict=True):
                    size = 1 + float(theirs.nan_to_num(0, 0, 0).abs().max())
                    theirs = mine(theirs) if theirs.ndim == 2 else theirs
                    if not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance * size):
                        wrong.append(f"{name}, {what}, {dtype}, {number}: {ours} for {theirs}")
    assert not wrong, "\n".join(wrong)


def softmax_by_its_formula():
    """PyTorch's softmax and cross-entropy in float64, with their gradients."""
    for x in magnitudes():
        theirs = x.clone().requires_grad_()
        (theirs.softmax(-1) * V).sum().backward()
        _, found = differentiated("softmax", kofn.distributed, x, mine)
        assert torch.allclose(found, mine(theirs.grad), rtol=1e-9, atol=1e-12)
        theirs.grad = None
        value = torch.nn.functional.cross_entropy(theirs, LABELS, **SMOOTHED)
        (value * V[:, 7]).sum().backward()
        loss, found = differentiated("softmax_loss", kofn.distributed, x, mine)
        assert torch.allclose(loss, value, rtol=1e-9)
        assert torch.allclose(found, mine(theirs.grad), rtol=1e-9, atol=1e-12)


def rows_with_nan():
    """Gradients of the finite scores of such a row are NaN, and those of other rows are not."""
    x = test_distributed.rows(1.0)[:, 0]
    x[1, 30] = x[2, 30] = torch.nan
    x[2, 1] = torch.inf
    finite = mine(x.isfinite())
    for name in MAPS:
        answer, wanted = differentiated(name, kofn, x, whole)
        found, gradient = differentiated(name, kofn.distributed, x, mine)
        answer = mine(answer) if answer.ndim == 2 else answer
        assert torch.allclose(found, answer, atol=2e-5, equal_nan=True), name
        assert torch.allclose(gradient[0], mine(wanted)[0], atol=2e-5), name
        assert gradient[1:][finite[1:]].isnan().all(), (name, gradient)
        assert wanted[1:][x.isfinite()[1:]].isnan().all(), (name, wanted)


def second_derivatives_of_rows_with_nan():
    """They are NaN, too, and those of other rows are not."""
    x = test_distributed.rows(1.0)[:, 0]
    x[1, 30] = torch.nan
    for name in ("softmax", "threshold", "marginals", "log_partition"):
        found = []
        for f, part in ((kofn, whole), (kofn.distributed, mine)):
            given = part(x).clone().requires_grad_()
            answer = MAPS[name](f, given)
            v = (part(V) if answer.ndim == 2 else V[:, 7]).to(answer.dtype)
            (first,) = torch.autograd.grad((answer * v).sum(), given, create_graph=True)
            (again,) = torch.autograd.grad((first * part(V).float().cos()).sum(), given)
            found.append(again.isnan())
        assert torch.equal(mine(found[0]), found[1]), name
        assert found[0].all(-1).tolist() == [False, True, False], name


TASKS = (
    many_magnitudes,
    softmax_by_its_formula,
    rows_with_nan,
    second_derivatives_of_rows_with_nan,
)


@pytest.mark.parametrize("task", TASKS)
def test_far_scores_of_shards(task, monkeypatch):
    monkeypatch.setitem(test_distributed.CUTS, 1, (0, 40))
    with joined(distributed.HashStore(), 0, 1):
        task()


@pytest.mark.full
@pytest.mark.parametrize("processes", [2, 4])
def test_far_scores_of_shards_of_more_processes(tmp_path, processes):
    run_on_ranks(tmp_path / "store", processes, *TASKS)
