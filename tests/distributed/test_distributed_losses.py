"""Losses of rows in several processes: those of whole rows, counted once, with their gradients."""

import pytest
import torch
from torch import distributed

import kofn
from kofn import losses
from ranks import run_on_ranks
from test_distributed import close, counted, mine, rows

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)

N = 40
INDICES = torch.tensor([[0, 13], [-100, 39], [7, 30]])
OUTSIDE = torch.rand(3, 2, N, generator=torch.Generator().manual_seed(0)) < 0.2
SOFT = torch.rand(3, 2, N, generator=torch.Generator().manual_seed(1)).softmax(-1)
HOT = torch.rand(3, 2, N, generator=torch.Generator().manual_seed(2)).topk(4).indices
HOT = torch.zeros(3, 2, N).scatter(-1, HOT, 1.0)
HOT[2, 1] = 0.0
WEIGHT = 0.5 + torch.rand(N, generator=torch.Generator().manual_seed(3))
WEIGHT[13] = 0.0
MASK = ~OUTSIDE | (HOT > 0)
MASK[0, 1] = False

CASES = {
    "indices": ("softmax_loss", INDICES, {}),
    "smoothed": ("softmax_loss", INDICES, dict(label_smoothing=0.2, mask=MASK)),
    "weighted": ("softmax_loss", INDICES, dict(weight=WEIGHT, label_smoothing=0.1)),
    "soft": ("softmax_loss", SOFT, dict(label_smoothing=0.3, weight=WEIGHT)),
    "sparsemax": ("sparsemax_loss", INDICES, dict(weight=WEIGHT)),
    "entmax": ("entmax_loss", SOFT, dict(mask=MASK | (SOFT > 0))),
    "entmax 1.2": ("entmax_loss", INDICES, dict(alpha=1.2, label_smoothing=0.1)),
    "k-hot": ("topk_loss", HOT, dict(mask=MASK)),
    "k-hot, smoothed": ("topk_loss", HOT, dict(label_smoothing=0.2, weight=WEIGHT)),
    "k-hot, normal": ("topk_loss", HOT, dict(link="normal")),
    "family": ("fenchel_young_loss", HOT, dict(link="linear")),
    "family of softmax": ("fenchel_young_loss", SOFT, {}),
}


def shard(value):
    """This rank's part of what there is per entry or class; the rest as it is."""
    entries = isinstance(value, torch.Tensor) and value.shape[-1] == N
    return mine(value) if entries else value


def passed(function, x, target, reduction, options, shard=shard):
    t = torch.tensor([[1.0, 0.5], [2.0, 1.0], [1.0, 0.3]], requires_grad=True)
    x = x.clone().requires_grad_()
    options = {name: shard(value) for name, value in options.items()}
    value = function(x, shard(target), temperature=t, reduction=reduction, **options)
    (value * torch.arange(1.0, 1 + value.numel()).view(value.shape)).sum().backward()
    return value.detach(), x.grad, t.grad


def whole_value(case, reduction, std=2.0):
    name, target, options = CASES[case]
    return passed(getattr(losses, name, None) or kofn.fenchel_young_loss, rows(std), target,
                  reduction, options, lambda value: value)  # fmt: skip


def same_losses(cases=tuple(CASES), reductions=("none", "mean", "sum")):
    """Values on every rank and gradients of scores and temperature, for every reduction."""
    wrong = []
    for case in cases:
        name, target, options = CASES[case]
        for reduction in reductions:
            wanted = whole_value(case, reduction)
            function = getattr(kofn.distributed, name)
            found = passed(function, mine(rows()), target, reduction, options)
            for ours, theirs, what in zip(found, wanted, ("loss", "x", "T"), strict=True):
                theirs = mine(theirs) if theirs.ndim == 3 else theirs
                size = float(theirs.nan_to_num(0, 0, 0).abs().max()) if theirs.numel() else 0.0
                if not close(ours, theirs, 3e-6 * (1 + size)):
                    wrong.append(f"{case}, {reduction}, {what}: {ours} for {theirs}")
    assert not wrong, "\n".join(wrong)


def edges():
    """Impossible targets, rows that are wholly masked or have +inf or NaN, and nothing at all."""
    x = rows()
    x[0, 0, 3], x[0, 1, 39] = torch.inf, torch.nan
    x[1] = -torch.inf
    x[1, 1, 2], x[2, 0, 1] = 1.0, -torch.inf
    target = torch.tensor([[3, 0], [0, 3], [1, -100]])
    for function, ours in (
        (losses.softmax_loss, kofn.distributed.softmax_loss),
        (losses.sparsemax_loss, kofn.distributed.sparsemax_loss),
    ):
        wanted = function(x, target, reduction="none")
        assert close(ours(mine(x), target, reduction="none"), wanted, 1e-6), (ours, wanted)
    x = rows()
    x[0, 0, 3], x[0, 1, 30], x[1, 0, 2] = torch.nan, torch.inf, torch.inf
    target, options = torch.full((3, 2), 13), dict(reduction="none")
    for smoothing in (0.0, 0.2):  # of a label whose class has the weight 0
        options["label_smoothing"] = smoothing
        wanted = losses.softmax_loss(x, target, weight=WEIGHT, **options)
        found = kofn.distributed.softmax_loss(mine(x), target, weight=mine(WEIGHT), **options)
        assert close(found, wanted, 1e-5), (smoothing, found, wanted)
    ignored = torch.full((3, 2), -100)
    assert float(kofn.distributed.softmax_loss(mine(x), ignored)) == 0
    with pytest.raises(ValueError, match=r"target must have indices in \[0, 40\)"):
        kofn.distributed.softmax_loss(mine(rows()), INDICES + 1)
    with pytest.raises(ValueError, match="were called with different arguments"):
        kofn.distributed.softmax_loss(mine(rows()), INDICES + distributed.get_rank())
    with pytest.raises(ValueError, match=r"weight must have one number for each"):
        kofn.distributed.softmax_loss(mine(rows()), INDICES, weight=WEIGHT)


def impossible_targets():
    """A row whose label is excluded costs ∞ and has no gradient, nor does its temperature."""
    x, target = rows(), torch.tensor([[3, 0], [0, 3], [1, 30]])
    x[0, 0, 3], x[2, 1, 30], x[1, 0, 2] = -torch.inf, -torch.inf, torch.inf
    barred = torch.tensor([[True, False], [True, False], [False, True]])
    alpha = torch.tensor(1.3, requires_grad=True)
    for name, options in (
        ("softmax_loss", {}),
        ("softmax_loss", dict(label_smoothing=0.1)),
        ("sparsemax_loss", {}),
        ("topk_loss", {}),
        ("entmax_loss", dict(alpha=alpha)),
    ):
        for on, z in ((losses, x), (kofn.distributed, mine(x))):
            z, t = z.clone().requires_grad_(), torch.ones(3, 2, requires_grad=True)
            value = getattr(on, name)(z, target, temperature=t, reduction="none", **options)
            in_z, in_t = torch.autograd.grad(value.sum(), (z, t))
            assert torch.equal(value.isinf(), barred), (name, value)
            assert not in_z[barred].any(), (name, in_z)
            assert not in_t[barred].any(), (name, in_t)
            assert not in_z.numel() or in_z[~barred].any(-1).any(), (name, in_z)


def second_derivatives():
    """As of whole rows, and of a learned alpha."""

    def twice(function, x, target, v):
        x = x.double().clone().requires_grad_()
        alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
        extra = (alpha,) if "entmax" in function.__name__ else ()
        value = function(x, target, *extra)
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        second = torch.autograd.grad((first * v).sum(), (x, *extra))
        return [first.detach(), *second]

    v = rows(1.0).flip(-1).double()
    for name in ("softmax_loss", "entmax_loss"):
        wanted = twice(getattr(losses, name), rows(0.5), INDICES, v)
        found = twice(getattr(kofn.distributed, name), mine(rows(0.5)), INDICES, mine(v))
        for ours, theirs in zip(found, wanted, strict=True):
            theirs = mine(theirs) if theirs.ndim else theirs
            assert close(ours, theirs, 1e-8), (name, ours, theirs)


def counts_messages():
    x, t = mine(rows()), torch.tensor(0.7, requires_grad=True)
    for target, most in ((INDICES, 6), (mine(SOFT), 5)):
        with counted() as sizes:
            value = kofn.distributed.softmax_loss(x.requires_grad_(), target, temperature=t)
            assert len(sizes) <= most
            assert max(sizes) <= 64 * 6, sizes
            forward = len(sizes)
            value.backward()
            assert len(sizes) == forward
    with counted() as sizes:
        value = kofn.distributed.topk_loss(x.requires_grad_(), mine(HOT))
        assert len(sizes) <= 3 + 3 + 8
        forward = len(sizes)
        value.backward()
        assert len(sizes) == forward


def as_loss_parallel():
    """PyTorch's loss_parallel has the same loss and gradients; ours also goes further."""
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    x, target = rows().flatten(0, 1), INDICES.clamp(min=0).flatten()
    whole = x.clone().requires_grad_()
    losses.softmax_loss(whole, target).backward()
    for function in ("theirs", "ours"):
        logits = distributed.tensor.distribute_tensor(x.clone(), mesh, [Shard(1)])
        logits.requires_grad_()
        if function == "theirs":
            with loss_parallel():
                value = torch.nn.functional.cross_entropy(logits, target)
                value.backward()
        else:
            value = kofn.distributed.softmax_loss(logits, target)
            value.backward()
        assert isinstance(logits.grad, DTensor)
        assert logits.grad.placements == (Shard(1),)
        assert close(logits.grad.full_tensor(), whole.grad, 1e-6)
        assert float(value.full_tensor()) == pytest.approx(
            float(losses.softmax_loss(x, target)), rel=1e-5
        )


def dtensors():
    """Sharded along rows, the batch, both, or neither: each row and each label counts once."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    size = distributed.get_world_size()
    shapes = [((size,), [way]) for way in ([Shard(2)], [Shard(0)], [Replicate()])]
    if size == 4:
        shapes = [((2, 2), [[Shard(0), Shard(2)], [Shard(2), Shard(2)], [Replicate(), Shard(2)]])]
    for shape, ways in shapes:
        mesh = init_device_mesh("cpu", shape)
        for placements in ways:
            for case in ("weighted", "soft", "k-hot, smoothed", "smoothed"):
                name, target, options = CASES[case]
                x = distribute_tensor(rows(), mesh, placements).requires_grad_()
                for reduction in ("mean", "none"):
                    x.grad = None
                    function = getattr(kofn.distributed, name)
                    value = function(x, target, reduction=reduction, **options)
                    value.sum().backward()
                    whole = rows().requires_grad_()
                    wanted = getattr(losses, name)(whole, target, reduction=reduction, **options)
                    wanted.sum().backward()
                    where = (case, reduction, placements)
                    assert close(value.full_tensor(), wanted, 1e-5), where
                    assert x.grad.placements == tuple(placements), where
                    assert close(x.grad.full_tensor(), whole.grad, 1e-5), where


TASKS = [
    same_losses,
    edges,
    impossible_targets,
    second_derivatives,
    counts_messages,
    as_loss_parallel,
    dtensors,
]


@pytest.mark.full
@pytest.mark.parametrize("processes", [2, 4])
def test_losses_of_shards_are_those_of_whole_rows(tmp_path, processes):
    """A few of them run with the ordinary tests of `test_distributed.py`."""
    run_on_ranks(tmp_path / "store", processes, *TASKS)
