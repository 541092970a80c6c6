"""Tasks in several processes that are joined by gloo."""

import contextlib
import multiprocessing
import os
import sys
import traceback

import torch
from torch import distributed

# Forks of a process that has imported PyTorch start a hundred times as fast; elsewhere than on
# Linux, its libraries may not survive a fork.
START = "forkserver" if sys.platform == "linux" else "spawn"
PRELOADED = ["torch.distributed.tensor", "jax", "hypothesis", "pytest", "scipy.stats"]
PRELOADED += ["kofn.distributed", "kofn.commands.app", "pandas", "sklearn"]
"""What the first of a worker's tests has the one server of forks import for all."""


def run_on_ranks(path, size, *tasks, kernels="reference", dead=0):
    """The tasks, one after another, in each of `size` processes, of which `dead` do not answer."""
    start = multiprocessing.get_context(START)
    start.set_forkserver_preload(PRELOADED)
    said = start.Queue()
    ranks = [
        start.Process(
            target=_on_rank, args=(rank, size, str(path), said, tasks, kernels), daemon=True
        )
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    try:
        failures = [said.get(timeout=900) for _ in ranks[dead:]]
        assert not any(failures), "\n".join(filter(None, failures))
    finally:
        for rank in ranks:
            rank.join(timeout=10)
            rank.kill()


def _on_rank(rank, size, path, said, tasks, kernels):
    torch.set_num_threads(1)
    failures = []
    with joined(distributed.FileStore(path, size), rank, size, kernels):
        for task in tasks:
            try:
                task()
            except BaseException:
                failures.append(f"rank {rank}, {task.__name__}: {traceback.format_exc()}")
                break  # the other ranks are in the middle of something
    said.put("\n".join(failures))


@contextlib.contextmanager
def joined(store, rank, size, kernels="reference"):
    """A process group, and by default the array code for whole rows, as for shards."""
    before = {name: os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "KOFN_KERNELS")}
    os.environ.update(GLOO_SOCKET_IFNAME="lo", KOFN_KERNELS=kernels)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        yield
    finally:
        distributed.destroy_process_group()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
