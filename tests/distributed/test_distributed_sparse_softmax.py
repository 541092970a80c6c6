"""Sets of rows in several processes, or along axes: those of whole rows, in every process."""

import jax
import numpy as np
import pytest
import torch
from torch import distributed

import kofn
from kofn import losses, metrics
from ranks import run_on_ranks
from support import full_but
from test_distributed import close, counted, mine, rows

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)
SETS = (
    dict(k=12, p=0.9, min_p=0.02),
    dict(k=5),
    dict(p=0.7),
    dict(min_p=0.1),
    dict(kept=([3, 14, 39, 0, 1, 13, 29, 30, 12, 5], [0, 3, 5, 5, 8, 9, 10])),
)
TARGET = torch.tensor([[0, 14], [-100, 39], [7, 5]])
WEIGHT = torch.linspace(0.5, 2, 40)


def differentiated(function, x, scale=None, dtype=torch.float64, **options):
    x = x.to(dtype).clone().requires_grad_()
    t = torch.tensor([[1.0, 0.5], [2.0, 1.0], [1.0, 0.3]], dtype=dtype, requires_grad=True)
    value = function(x, temperature=t, **options)
    scale = torch.arange(1.0, 1 + value.numel()).view(value.shape) if scale is None else scale
    (value * scale).sum().backward()
    return value.detach(), x.grad, t.grad


def same(found, wanted, size=1e-11):
    for ours, theirs in zip(found, wanted, strict=True):
        theirs = mine(theirs) if theirs.ndim == 3 else theirs
        assert close(ours, theirs, size), (ours, theirs)


def sets_are_those_of_whole_rows():
    f = kofn.distributed
    for of in SETS:
        scale = rows(1.0).double()
        wanted = differentiated(kofn.sparse_softmax, rows(), scale, **of)
        found = differentiated(f.sparse_softmax, mine(rows()), mine(scale), **of)
        assert torch.equal(found[0] > 0, mine(wanted[0]) > 0), of
        same(found, wanted)
        same(
            differentiated(f.sparse_softmax_entropy, mine(rows()), **of),
            differentiated(metrics.sparse_softmax_entropy, rows(), **of),
        )
        for way in ("against", "kept", "infinite", None):
            for reduction in ("none", "mean"):
                more = dict(target=TARGET, outside=way, reduction=reduction, **of)
                if way == "infinite":
                    more["target"] = kofn.sparse_softmax(rows(), **of).argmax(-1)
                wanted = differentiated(
                    losses.sparse_softmax_loss, rows(), **more, weight=WEIGHT.double()
                )
                weight = mine(WEIGHT.double())
                found = differentiated(f.sparse_softmax_loss, mine(rows()), **more, weight=weight)
                same(found, wanted)


def edges():
    x = rows().double()
    x[0, 0, 3], x[0, 1, 39], x[1, 0] = torch.inf, torch.nan, -torch.inf
    mask = torch.ones(40, dtype=torch.bool)
    mask[[5, 14]] = False
    f = kofn.distributed
    for of in SETS:
        ours = f.sparse_softmax(mine(x), mask=mine(mask), **of)
        assert close(ours, mine(kofn.sparse_softmax(x, mask=mask, **of)), 1e-11), of
        ours = f.sparse_softmax_entropy(mine(x), **of)
        assert close(ours, metrics.sparse_softmax_entropy(x, **of), 1e-11), of
        ours = f.sparse_softmax_loss(mine(x), TARGET, reduction="none", **of)
        assert close(ours, losses.sparse_softmax_loss(x, TARGET, reduction="none", **of), 1e-11)
    with pytest.raises(ValueError, match="give k, p or min_p, or kept; got none"):
        f.sparse_softmax(mine(x))
    ids, offsets = SETS[-1]["kept"]
    rank = distributed.get_rank()
    other = [*ids[:-1], 6 if rank else 5]
    if distributed.get_world_size() > 1:
        with pytest.raises(ValueError, match="were called with different arguments"):
            f.sparse_softmax(mine(x), kept=(other, offsets))
        with pytest.raises(ValueError, match="were called with different arguments"):
            f.sparse_softmax(mine(x), k=3 + rank)
    with pytest.raises(ValueError, match=r"token_ids of kept must be in \[0, 40\)"):
        f.sparse_softmax(mine(x), kept=([40], [0, 1, 1, 1, 1, 1, 1]))


def second_derivatives():
    v = rows(1.0).flip(-1).double()

    def twice(function, x, v, **of):
        x = x.double().clone().requires_grad_()
        (first,) = torch.autograd.grad(function(x, TARGET, **of), x, create_graph=True)
        return torch.autograd.grad((first * v).sum(), x)

    for of in (SETS[0], SETS[-1]):
        wanted = twice(losses.sparse_softmax_loss, rows(0.5), v, **of)
        same(twice(kofn.distributed.sparse_softmax_loss, mine(rows(0.5)), mine(v), **of), wanted)


def messages_are_few_and_short():
    with counted() as sizes:
        kofn.distributed.sparse_softmax_loss(mine(rows()), TARGET, k=12, p=0.9, reduction="none")
    assert len(sizes) <= 40
    assert max(sizes) <= 8 * 7 * 6
    with counted() as sizes:
        kofn.distributed.sparse_softmax_loss(mine(rows()), TARGET, **SETS[-1])
    assert len(sizes) <= 12


def dtensors():
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for of in SETS:
        x = distribute_tensor(rows(), mesh, [Shard(2)]).requires_grad_()
        found = kofn.distributed.sparse_softmax(x, **of)
        whole = rows().requires_grad_()
        assert close(found.full_tensor(), kofn.sparse_softmax(whole, **of), 1e-6)
        loss = kofn.distributed.sparse_softmax_loss(x, TARGET, **of)
        losses.sparse_softmax_loss(whole, TARGET, **of).backward()
        loss.backward()
        assert close(x.grad.full_tensor(), whole.grad, 1e-6)


TASKS = (
    sets_are_those_of_whole_rows,
    edges,
    second_derivatives,
    messages_are_few_and_short,
    dtensors,
)


@pytest.mark.parametrize(
    "size", [2, pytest.param(1, marks=pytest.mark.full), pytest.param(4, marks=pytest.mark.full)]
)
def test_sets_in_several_processes(tmp_path, size):
    run_on_ranks(tmp_path / "store", size, *TASKS)


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="in jax.experimental before 0.6")
@pytest.mark.parametrize("tracked", full_but((False,), (False, True)))
def test_sets_along_an_axis(tracked):
    part, whole = jax.sharding.PartitionSpec(None, None, "i"), jax.sharding.PartitionSpec()
    size = max(n for n in (1, 2, 4) if n <= jax.device_count())
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((size,), ("i",), axis_types=auto, devices=jax.devices()[:size])
    x, target, c = rows().double().numpy(), TARGET.numpy(), rows(1.0).double().numpy()

    def over_axis(f, out):
        return jax.jit(
            jax.shard_map(f, mesh=mesh, in_specs=(part,), out_specs=out, check_vma=tracked)
        )

    f = kofn.distributed
    for of in (SETS[0], SETS[-1]):
        softmax = over_axis(lambda x, of=of: f.sparse_softmax(x, axis_name="i", **of), part)
        loss = over_axis(
            lambda x, of=of: f.sparse_softmax_loss(
                x, target, axis_name="i", reduction="none", **of
            ),
            whole,
        )
        assert np.asarray(softmax(x)) == pytest.approx(kofn.sparse_softmax(x, **of), abs=1e-11)
        wanted = losses.sparse_softmax_loss(x, target, reduction="none", **of)
        assert np.asarray(loss(x)) == pytest.approx(wanted, abs=1e-11)
        for ours, theirs, scale in (
            (softmax, lambda x, of=of: kofn.sparse_softmax(x, **of), c),
            (
                loss,
                lambda x, of=of: losses.sparse_softmax_loss(x, target, reduction="none", **of),
                c[..., 0],
            ),
        ):
            slope = jax.grad(lambda x, f=ours, s=scale: (f(x) * s).sum())(jax.numpy.asarray(x))
            wanted = jax.grad(lambda x, f=theirs, s=scale: (f(x) * s).sum())(jax.numpy.asarray(x))
            assert np.asarray(slope) == pytest.approx(np.asarray(wanted), abs=1e-10)
