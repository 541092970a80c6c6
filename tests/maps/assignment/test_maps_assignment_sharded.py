"""soft_assignment of DTensors: the answers and gradients of whole tensors, on two processes."""

import numpy as np
import pytest
import torch
from torch import distributed

from kofn import links, soft_assignment
from oracles.assignment import matrix
from ranks import run_on_ranks

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)

X = torch.tensor(np.stack([matrix(4, 6, seed) for seed in range(3)]))
V = torch.tensor(np.stack([matrix(4, 6, seed) for seed in range(3, 6)]))
K = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)
C = torch.full((3, 6), 5 / 6, dtype=torch.float64)
T = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)

CALLS = {
    "arrays": lambda x, like: soft_assignment(
        x, like(K), like(C), temperature=like(T), link=links.entmax(like(T / 4 + 1))
    ),
    "hard": lambda x, like: soft_assignment(x, 1, mask=x > -1.5, hard=True),
    "wide": lambda x, like: soft_assignment(x.mT, 1),
}


def same_as_whole():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    size = distributed.get_world_size()
    line, square = init_device_mesh("cpu", (size,)), init_device_mesh("cpu", (size, 1))
    cases = [(line, [way]) for way in (Shard(0), Shard(1))]
    cases.append((square, [Shard(0), Shard(2)]))
    for name, call in CALLS.items():
        whole = X.clone().requires_grad_()
        wanted = call(whole, lambda a: a)
        cotangent = (V.mT if name == "wide" else V).flatten()[: wanted.numel()].view(wanted.shape)
        wanted.backward(cotangent)
        for mesh, placements in cases:

            def like(a, mesh=mesh):
                return distribute_tensor(a, mesh, [Replicate()] * mesh.ndim)

            part = distribute_tensor(X, mesh, placements).requires_grad_()
            answer = call(part, like)
            assert torch.allclose(answer.full_tensor(), wanted, rtol=0, atol=1e-12), (
                name,
                placements,
            )
            answer.backward(like(cotangent))
            slope = part.grad.full_tensor()
            assert torch.allclose(slope, whole.grad, rtol=0, atol=1e-10), (name, placements)
            if name == "arrays":
                assert list(answer.placements) == placements


def test_any_placement_has_the_answers_of_whole_tensors_on_two_processes(tmp_path):
    run_on_ranks(tmp_path / "store", 2, same_as_whole, kernels="on")
