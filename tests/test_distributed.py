"""kofn.distributed: rows in several processes have the answers and gradients of whole ones."""

import contextlib
import multiprocessing
import os
import traceback

import numpy as np
import pytest
import torch
from torch import distributed

import kofn

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)

CUTS = {1: (0, 40), 2: (0, 13, 40), 4: (0, 0, 7, 30, 40)}  # uneven, and one shard empty


def run_on_ranks(path, size, *tasks):
    """The tasks, one after another, in each of `size` processes joined by gloo."""
    spawn = multiprocessing.get_context("spawn")
    said = spawn.Queue()
    ranks = [
        spawn.Process(target=_on_rank, args=(rank, size, str(path), said, tasks), daemon=True)
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    try:
        failures = [said.get(timeout=300) for _ in ranks]
        assert not any(failures), "\n".join(filter(None, failures))
    finally:
        for rank in ranks:
            rank.join(timeout=10)
            rank.kill()


def _on_rank(rank, size, path, said, tasks):
    torch.set_num_threads(1)
    failures = []
    with joined(distributed.FileStore(path, size), rank, size):
        for task in tasks:
            try:
                task()
            except BaseException:
                failures.append(f"rank {rank}, {task.__name__}: {traceback.format_exc()}")
    said.put("\n".join(failures))


@contextlib.contextmanager
def joined(store, rank, size):
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        yield
    finally:
        distributed.destroy_process_group()
        if before is None:
            os.environ.pop("GLOO_SOCKET_IFNAME")


def mine(x, dim=-1):
    """This rank's shard."""
    cuts, rank = CUTS[distributed.get_world_size()], distributed.get_rank()
    return x.narrow(dim, cuts[rank], cuts[rank + 1] - cuts[rank])


@contextlib.contextmanager
def counted():
    """The sizes of the messages of all collectives, in bytes."""
    sizes, before = [], distributed.all_reduce

    def all_reduce(message, *others):
        sizes.append(message.numel() * message.element_size())
        return before(message, *others)

    distributed.all_reduce = all_reduce
    try:
        yield sizes
    finally:
        distributed.all_reduce = before


def rows(std=2.0, n=40):
    return torch.from_numpy(np.random.default_rng(0).normal(0, std, (3, 2, n))).float()


K = torch.tensor([[1.0, 3.5], [0.0, 40.0], [20.5, 37.0]])
T = torch.tensor([[1.0, 0.3], [1.0, 2.0], [0.05, 1.0]])

MAPS = {
    **{
        link: lambda f, x, k, t, link=link: f.soft_topk(x, k, temperature=t, link=link)
        for link in ("logistic", "laplace", "normal", "exponential", "linear", "entmax")
    },
    "hard": lambda f, x, k, t: f.soft_topk(x, k, temperature=t, hard=True),
    "threshold": lambda f, x, k, t: f.soft_topk_threshold(x, k, temperature=t, link="normal"),
    "sum": lambda f, x, k, t: f.soft_topk_sum(x, k, temperature=t),
    "sum of linear": lambda f, x, k, t: f.soft_topk_sum(x, k, temperature=t, link="linear"),
    "softmax": lambda f, x, k, t: f.softmax(x, temperature=t),
    "sparsemax": lambda f, x, k, t: f.sparsemax(x, temperature=t),
    "entmax 1.3": lambda f, x, k, t: f.entmax(x, 1.3, temperature=t),
}


def differentiated(function, f, x, v, dtype=torch.float32):
    x, k, t = (one.to(dtype, copy=True).requires_grad_() for one in (x, K, T))
    answer = function(f, x, k, t)
    v = v if answer.shape == x.shape else v[..., 0]
    v = v.to(answer.dtype)
    torch.where(answer.isfinite(), answer * v, 0.0).sum().backward()
    return (
        answer.detach(),
        x.grad,
        *(torch.zeros(3, 2) if a.grad is None else a.grad for a in (k, t)),
    )


def close(found, wanted, atol):
    return torch.allclose(found, wanted, atol=atol, rtol=1e-5, equal_nan=True)


def same_as_whole():
    """Weights, thresholds and sums, and the gradients of scores, k and temperature."""
    x, v = rows(), rows(1.0).flip(-1)
    wrong = []
    v[..., 0] = 0.7  # of what there is per row, the same cotangent on all ranks
    for name, function in MAPS.items():
        wanted = differentiated(function, kofn, x, v)
        weights = mine(v)
        if wanted[0].ndim == 2:
            weights = v
        found = differentiated(function, kofn.distributed, mine(x), weights)
        pairs = zip(found, wanted, ("answer", "x", "k", "T"), strict=True)
        for ours, whole, what in pairs:
            whole = mine(whole) if whole.ndim == 3 else whole
            if not close(ours, whole, 2e-6 * (1 + whole.nan_to_num(0, 0, 0).abs().max())):
                wrong.append(f"{name}, {what}: {(ours - whole).abs().max()}")
    assert not wrong, "\n".join(wrong)


def test_shards_of_rows_have_the_answers_of_whole_ones(tmp_path):
    run_on_ranks(tmp_path / "store", 2, same_as_whole)
