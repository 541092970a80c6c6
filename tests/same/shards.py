"""Answers of rows that lie in two processes or on two devices, and the messages that they cost."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import frameworks
import inputs
import numpy as np
import torch
from cases import Case, case_of
from frameworks import Arrays
from record import attempt
from torch import distributed as processes

from kofn import distributed

SIZE = 2
MESSAGES = re.compile(r"\b(psum\w*|pmax|pmin|all_gather\w*|all_to_all|ppermute|reduce_scatter)\[")


def on_ranks(names: list[str]) -> dict[str, Any]:
    """Return the answers of all ranks, one after another; the same processes run all cases."""
    spawn = multiprocessing.get_context("spawn")
    said = spawn.Queue()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        ranks = [
            spawn.Process(target=_rank, args=(rank, path, names, said), daemon=True)
            for rank in range(SIZE)
        ]
        for rank in ranks:
            rank.start()
        parts = dict(said.get(timeout=7200) for _ in ranks)
        for rank in ranks:
            rank.join()
    return {name: _together([parts[rank][name] for rank in range(SIZE)]) for name in names}


def _together(parts: list[Any]) -> Any:
    """An error of one rank is that of all."""
    errors = [part for part in parts if isinstance(part, tuple)]
    return errors[0] if errors else [each for part in parts for each in part]


def _rank(rank: int, path: str, names: list[str], said: Any) -> None:
    warnings.simplefilter("ignore")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = processes.FileStore(path, SIZE)
    processes.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    found = {}
    for name in names:
        case = case_of(name)
        run = group_answers if case.framework == "group" else dtensor_answers
        found[name] = attempt(lambda case=case, run=run: frameworks.recorded(run(case)))
        if "SAME_TIMES" in os.environ and not rank:
            print(name, file=sys.stderr, flush=True)
    said.put((rank, found))
    processes.destroy_process_group()


def mine(value: np.ndarray, rank: int, n: int) -> np.ndarray:
    """Shards differ in size."""
    cut = n // 3
    return value[..., :cut] if rank == 0 else value[..., cut:]


def counted(run: Callable[[], Any]) -> tuple[Any, list[int]]:
    """Call a function; also return the number of messages and of their bytes."""
    names = ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "all_to_all")
    sizes, before = [], {name: getattr(processes, name) for name in names}

    def count(name: str, *arguments: Any, **options: Any) -> Any:
        message = next(a for a in arguments[::-1] if isinstance(a, torch.Tensor))
        sizes.append(message.numel() * message.element_size())
        return before[name](*arguments, **options)

    for name in names:
        setattr(processes, name, partial(count, name))
    try:
        return run(), [len(sizes), sum(sizes)]
    finally:
        for name, function in before.items():
            setattr(processes, name, function)


def messages(f: Callable, learned: list) -> Arrays:
    """Return the messages of a value and of its way back."""
    leaves = [a.detach().clone().requires_grad_() for a in learned]
    answer, forth = counted(lambda: f(*leaves))
    ys = [y for y in frameworks.floating(answer) if y.requires_grad]
    _, back = counted(lambda: torch.autograd.backward(ys, [torch.ones_like(y) for y in ys]))
    return [np.array([*forth, *back])]


def group_answers(case: Case) -> Arrays:
    rank = processes.get_rank()

    def array(value: np.ndarray) -> torch.Tensor:
        whole = value.shape[-1:] == (case.n,) and value.ndim == 2
        return frameworks.of_torch(mine(value, rank, case.n) if whole else value, case.dtype)

    def noise(seed: str, like: Arrays) -> list[torch.Tensor]:
        # What each rank has of its own differs; what all ranks have alike does not.
        own = [f"{seed} {rank if a.ndim == 2 else ''}" for a in like]
        return [frameworks.torch_noise(s, [a])[0] for s, a in zip(own, like, strict=True)]

    told = frameworks.given(case, array)
    f, learned = told.function(distributed), list(told.learned.values())
    if case.order == "messages":
        return messages(f, learned)
    return frameworks.torch_order(f, learned, case.order, noise)


def dtensor_answers(case: Case) -> Arrays:
    """Rows sharded over the batch; what has no batch is in every process."""
    from torch.distributed.tensor import (
        DTensor,
        Replicate,
        Shard,
        distribute_tensor,
        init_device_mesh,
    )

    mesh = init_device_mesh("cpu", (SIZE,))

    def place(tensor: torch.Tensor) -> DTensor:
        batch = tensor.ndim and tensor.shape[0] == 22
        return distribute_tensor(tensor, mesh, [Shard(0) if batch else Replicate()])

    def noise(seed: str, like: Arrays) -> list[Any]:
        return [place(v) for v in frameworks.torch_noise(seed, like)]

    told = frameworks.given(case, lambda v: place(frameworks.of_torch(v, case.dtype)))
    f, learned = told.function(), list(told.learned.values())
    if case.order == "messages":
        return messages(f, learned)
    if case.framework == "dtensor_compile":
        torch._dynamo.reset()
        f = torch.compile(f, backend="aot_eager")
    found = frameworks.torch_order(f, learned, case.order, noise)
    return [a.to_local() if isinstance(a, DTensor) else a for a in found]


def on_axis(case: Case) -> frameworks.Record:
    """Rows in shards of two devices of jax.shard_map."""
    import jax
    from jax.sharding import AxisType
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((SIZE,), ("i",), axis_types=(AxisType.Auto,))
    told = frameworks.given(case, lambda v: frameworks.of_jax(v, case.dtype))
    told.fixed["shards"] = dict(axis_name="i")
    arrays = {k: v for k, v in told.fixed.items() if k in inputs.PER_ROW and hasattr(v, "ndim")}
    used = [*told.learned, *arrays]
    told.fixed = {k: v for k, v in told.fixed.items() if k not in arrays}
    own = frameworks.Given(case=case, fixed=told.fixed, learned=dict.fromkeys(used))

    def spec(value: Any) -> P:
        return P(None, "i") if value.ndim == 2 else P()

    values = [*told.learned.values(), *arrays.values()]
    part = own.function(distributed)
    whole = frameworks.OPERATIONS[case.operation]

    def answer(*xs: Any) -> Any:
        rows = jax.eval_shape(lambda *z: whole.of(frameworks.kofn, _plain(told, used, z)), *xs)
        out = P(None, "i") if rows.ndim == 2 else P()
        return jax.shard_map(part, mesh=mesh, in_specs=tuple(map(spec, values)), out_specs=out)(*xs)

    def f(*learned: Any) -> Any:
        return answer(*learned, *arrays.values())

    learned = tuple(told.learned.values())
    if case.order != "messages":
        return frameworks.recorded(frameworks.jax_order(f, learned, case.order, jit=True))

    def pulled(*arrays: Any) -> Any:
        ys, back = jax.vjp(f, *arrays)
        return back(ys) if learned else ys

    counts = [len(MESSAGES.findall(str(jax.make_jaxpr(g)(*learned)))) for g in (f, pulled)]
    return frameworks.recorded([np.array(counts)])


def _plain(told: Any, names: list[str], values: tuple) -> Any:
    """The arguments of the function of whole rows, which tells the shape of the answer."""
    fixed = dict(told.fixed, shards={})
    return frameworks.SimpleNamespace(**fixed, **dict(zip(names, values, strict=True)))
