"""kofn.distributed.KSubset: marginals and log Z of rows in several processes."""

import pytest
import torch
from torch import distributed

import kofn
import test_distributed
from ranks import joined, run_on_ranks
from test_distributed import close, counted, mine, rows

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)

K = torch.tensor([[0, 1], [40, 20], [3, 37]])
MASK = torch.rand(3, 2, 40, generator=torch.Generator().manual_seed(0)) < 0.9


def grads(choice, x, v):
    """Both answers with their gradients, and a second derivative of log Z."""
    v = v.to(x.dtype)
    x = x.clone().requires_grad_()
    marginals, log_z = choice(x).marginals(), choice(x).log_partition()
    (of_marginals,) = torch.autograd.grad((marginals * v).sum(), x)
    (of_log_z,) = torch.autograd.grad(log_z.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((of_log_z * v).sum(), x)
    return marginals.detach(), log_z.detach(), of_marginals, of_log_z.detach(), second


def same_as_whole():
    wrong, v = [], rows(1.0).flip(-1)
    for dtype, atol in ((torch.float32, 3e-5), (torch.float64, 1e-9)):
        for std in (0.0, 2.0, 30.0):
            x = rows(std).to(dtype)
            for mask in (None, MASK):
                ours = None if mask is None else mine(mask)
                found = grads(
                    lambda y, m=ours: kofn.distributed.KSubset(y, K, mask=m), mine(x), mine(v)
                )
                wanted = grads(lambda y, m=mask: kofn.KSubset(y, K, mask=m), x, v)
                for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
                    other = mine(other) if other.ndim == 3 else other
                    size = float(other.abs().max()) if other.numel() else 0.0
                    if not close(one, other, atol * (1 + size)):
                        wrong.append(f"{dtype}, {std}, {place}: {(one - other).abs().max()}")
    assert not wrong, "\n".join(wrong)


def special_rows():
    x = rows()
    x[0, 0, :3], x[0, 1, 5], x[1, 0] = torch.inf, torch.nan, -torch.inf
    for k in (0, 2, 3, 10, 40):
        ours, theirs = kofn.distributed.KSubset(mine(x), k), kofn.KSubset(x, k)
        assert close(ours.marginals(), mine(theirs.marginals()), 1e-5), k
        found, wanted = ours.log_partition(), theirs.log_partition()
        assert close(found, wanted, 1e-5 * 100), (k, found, wanted)
    with pytest.raises(ValueError, match="k must be"):
        kofn.distributed.KSubset(mine(x), 41).marginals()
    with pytest.raises(TypeError, match="k must be an integer"):
        kofn.distributed.KSubset(mine(x), torch.tensor(1.5)).marginals()


def counts_messages():
    x = mine(rows()).requires_grad_()
    with counted() as sizes:
        answer = kofn.distributed.KSubset(x, 5).marginals()
        forward = len(sizes)
        assert forward <= 3 + 8 + 2
        assert max(sizes) <= 6 * 16 * 16
        answer.square().sum().backward()
        assert len(sizes) == forward + 1
        sizes.clear()
        answer = kofn.distributed.KSubset(x, 5).log_partition()
        forward = len(sizes)
        answer.sum().backward()
        assert len(sizes) == forward


def dtensors():
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for dim in (0, 2):
        x = distribute_tensor(rows(), mesh, [Shard(dim)]).requires_grad_()
        choice, wanted = kofn.distributed.KSubset(x, 7), kofn.KSubset(rows(), 7)
        assert close(choice.marginals().full_tensor(), wanted.marginals(), 3e-5)
        value = choice.log_partition()
        assert close(value.full_tensor(), wanted.log_partition(), 1e-4)
        value.sum().backward()
        assert close(x.grad.full_tensor(), wanted.marginals(), 3e-5)


TASKS = [same_as_whole, special_rows, counts_messages, dtensors]


@pytest.mark.full
@pytest.mark.parametrize("processes", [2, 4])
def test_k_subsets_of_shards(tmp_path, processes):
    run_on_ranks(tmp_path / "store", processes, *TASKS)


def test_k_subsets_in_one_process(monkeypatch):
    monkeypatch.setitem(test_distributed.CUTS, 1, (0, 40))
    with joined(distributed.HashStore(), 0, 1):
        same_as_whole()
        special_rows()
