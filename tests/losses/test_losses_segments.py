"""The loss of softmax over sets of segments: by kernels, of torch tensors."""

import math

import pytest
import torch

from kofn.losses import segment_sparse_softmax_loss, sparse_softmax_loss

LENGTHS = (3, 1, 7, 0, 5, 5, 20)
PTR = torch.tensor([0, *LENGTHS]).cumsum(0)
TARGET = torch.tensor([1, 3, 10, -100, 12, -100, 23])  # two do not count
SETS = {
    "k": dict(k=2),
    "p": dict(p=0.8),
    "several": dict(k=3, p=0.9, min_p=0.05),
    "more than there are": dict(k=100),
}


def of_dense_rows(scores, temperature, k=None, **options):
    """The losses of the segments, a call of dense rows for each."""
    losses = scores.new_zeros(len(LENGTHS))
    for i, (first, n) in enumerate(zip(PTR.tolist(), LENGTHS, strict=False)):
        if TARGET[i] >= 0:
            row, label = scores[None, first : first + n], TARGET[i : i + 1] - first
            own = options if k is None else options | dict(k=min(k, n))
            t = temperature[i : i + 1]
            losses[i] = sparse_softmax_loss(row, label, temperature=t, reduction="sum", **own)
    return losses


def with_slopes(losses, scores):
    """Losses, their gradient, the same with a graph, and a second derivative."""
    finite = losses[losses.isfinite()]
    whole = (finite * torch.linspace(-1, 1, len(finite), dtype=finite.dtype)).sum()
    (first,) = torch.autograd.grad(whole, scores, retain_graph=True)
    (slope,) = torch.autograd.grad(whole, scores, create_graph=True)
    (second,) = torch.autograd.grad(slope.cumsum(0).square().sum(), scores)
    return losses.detach(), first, slope.detach(), second


@pytest.mark.parametrize("way", ["against", "kept", "infinite"])
@pytest.mark.parametrize("of", SETS)
def test_segments_are_rows(of, way):
    """In turn and shuffled, with equal scores, scores of ±inf, and one that is excluded."""
    torch.manual_seed(0)
    x = torch.randn(int(PTR[-1]), dtype=torch.float64)
    x[11:16], x[7], x[8], x[22], x[24] = 0.5, math.inf, -math.inf, -math.inf, x[23]
    t, order = torch.linspace(0.5, 2, len(LENGTHS), dtype=torch.float64), torch.randperm(len(x))
    ids = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    moved = torch.where(TARGET < 0, TARGET, order.argsort()[TARGET.clamp(min=0)])
    own: dict = dict(temperature=t, outside=way, reduction="none", **SETS[of])
    x.requires_grad_()
    wanted = with_slopes(of_dense_rows(x, t, outside=way, **SETS[of]), x)
    in_turn = segment_sparse_softmax_loss(x, TARGET, ptr=PTR, **own)
    shuffled = segment_sparse_softmax_loss(
        x[order], moved, segment_ids=ids[order], num_segments=len(LENGTHS), **own
    )
    for found in (in_turn, shuffled):
        for one, other in zip(with_slopes(found, x), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_what_counts():
    """A segment counts by an available entry, and a target that is not ignored."""
    x = torch.tensor([1.0, 2.0, -math.inf, -math.inf, 0.0])
    ptr, target = torch.tensor([0, 2, 4, 5]), torch.tensor([0, 2, 4])
    one = math.log1p(math.e)
    for y, mean in ((target, one / 2), (torch.tensor([0, -100, -100]), one)):
        loss = segment_sparse_softmax_loss(x, y, ptr=ptr, k=2)
        assert math.isclose(loss.item(), mean, rel_tol=1e-6)
    for wrong in ([2, 2, 4], [-1, 2, 4], [0, 2, 5]):
        with pytest.raises(ValueError, match="target must be an entry of its segment"):
            segment_sparse_softmax_loss(x, torch.tensor(wrong), ptr=ptr, k=2)
