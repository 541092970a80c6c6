"""What is fixed beyond signatures: schemas, states, pickles, saved programs, words of errors.

The old side writes pickles and programs once (`contract/write`), and both sides read those. An
answer is a list of texts, or of arrays as in frameworks.py.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import pkgutil
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from frameworks import Record, recorded

import kofn
from kofn import losses, nn

INF = float("inf")


def saved(name: str) -> Path:
    return Path(os.environ["SAME_SAVED"], name)


def scores(rows: int = 5, n: int = 12) -> np.ndarray:
    x = np.random.default_rng(0).normal(0, 2, (rows, n)).astype("float32")
    x[1, 3], x[2, 4:7], x[3] = np.nan, -INF, np.round(x[3])
    return x


def tensor() -> torch.Tensor:
    return torch.from_numpy(scores())


# --- names and words


def schemas() -> list[str]:
    """Operators of torch.ops.kofn, after all modules that may register some."""
    outside = ("kofn.commands", "kofn.integrations", "kofn.__main__", "kofn.kernels.gpu")
    for found in pkgutil.walk_packages(kofn.__path__, "kofn."):
        if not found.name.startswith(outside):
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)
    every = torch._C._jit_get_all_schemas()
    return sorted(str(each) for each in every if each.name.startswith("kofn::"))


def public_signatures() -> list[str]:
    sys.path.append(str(Path(__file__).parents[1]))
    from signatures import everything

    listed = Path(os.environ["SAME_SOURCE"]).parent / "tests" / "signatures.txt"
    return [*everything(), "--- and the list says", *listed.read_text("utf-8").splitlines()]


def modules() -> dict[str, Any]:
    torch.manual_seed(0)
    router = dict(balance=1e-3)
    return {
        "router": nn.TopKRouter(8, 6, 2, **router),
        "soft router": nn.TopKRouter(8, 6, 2, selection="soft"),
        "choosing router": nn.TopKRouter(
            8, 6, 2, selection="expert_choice", inference_threshold=True
        ),
        "budget router": nn.TopKRouter(8, 6, 2, selection="budget", inference_threshold=True),
        "attention": nn.SparseAttention(8, 2, batch_first=True),
        "learned attention": nn.SparseAttention(
            8, 2, batch_first=True, weights="soft_topk", k=3, learned=("k", "temperature")
        ),
        "learned alpha": nn.SparseAttention(8, 2, batch_first=True, learned=("alpha",)),
        "autoencoder": nn.TopKSAE(8, 32, 4),
        "batch autoencoder": nn.TopKSAE(8, 32, 4, selection="batch"),
        "pruned": pruned()[0],
        "pruned 2:4": pruned(pattern="2:4")[0],
    }


def pruned(**how: Any) -> tuple[torch.nn.Module, nn.Pruner]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    how = how or dict(amount=0.5)
    return model, nn.prune(model, schedule=20, **how)


def states() -> list[str]:
    found = []
    for name, module in modules().items():
        for key, value in module.state_dict().items():
            kind = f"{value.dtype} {list(value.shape)}" if hasattr(value, "dtype") else type(value)
            found.append(f"{name}: {key}: {kind}")
    return found


def steps_of_modules() -> Record:
    """Answers and gradients of modules; pruning takes steps of training."""
    found: list[Any] = []
    torch.manual_seed(1)
    x = torch.randn(7, 8)
    for name, module in modules().items():
        z = x.clone().requires_grad_()
        given = (z[None],) * 3 if "attention" in name or "alpha" in name else (z,)
        answer = module(*given)
        parts = answer if isinstance(answer, tuple) else (answer,)
        floats = [a for a in parts if isinstance(a, torch.Tensor) and a.is_floating_point()]
        learned = [z, *(p for p in module.parameters() if p.requires_grad)]
        total = sum(
            (a.nan_to_num(0, 0, 0) * torch.linspace(-1, 2, a.shape[-1])).sum() for a in floats
        )
        how = dict(allow_unused=True, materialize_grads=True)
        found += [*floats, *torch.autograd.grad(total, learned, **how)]
    for how in (dict(amount=0.5), dict(amount=0.7, costs="bytes"), dict(pattern="2:4")):
        model, pruner = pruned(**how)
        groups = [{"params": pruner.other_parameters()}, pruner.score_parameters()]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            pruner.step(optimizer)
        found += [p.detach().clone() for p in model.parameters()]
    return recorded(found)


def said(call: Callable[[], Any]) -> str:
    try:
        return f"taken: {type(call()).__name__}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def errors() -> list[str]:
    """The words of wrong calls, on NumPy, PyTorch and JAX."""
    import jax.numpy as jnp

    arrays = {"numpy": scores(), "torch": tensor(), "jax": jnp.asarray(scores())}
    found = [line for kind, x in arrays.items() for line in errors_of(kind, x)]
    return [
        *found,
        said(lambda: kofn.links.entmax(0.9)),
        said(lambda: kofn.Link(1, 2)),
        said(lambda: nn.TopKRouter(8, 4, 5)),
        said(lambda: nn.SparseAttention(8, 3)),
        said(lambda: nn.TopKSAE(8, 4, 5)),
        said(lambda: kofn.streaming.soft_topk([scores()], 100)),
        said(lambda: kofn.distributed.softmax(tensor())),
    ]


def errors_of(kind: str, x: Any) -> list[str]:
    ids = np.array([0, 0, 1])
    wrong: list[tuple[Any, str, tuple, dict[str, Any]]] = [
        (kofn, "soft_topk", (13,), {}),
        (kofn, "soft_topk_threshold", (-1,), {}),
        (kofn, "soft_topk_sum", ("2",), {}),
        (kofn, "hard_topk", (None,), {}),
        (kofn, "topk_gates", (2.5,), {}),
        (kofn, "log_soft_topk", (True,), {}),
        (kofn, "entmax", (0.5,), {}),
        (kofn, "log_entmax", ("a",), {}),
        (kofn, "taylor_softmax", (3,), {}),
        (kofn, "sparse_softmax", (), {}),
        (kofn, "perturbed_argmax", (), dict(noise="no")),
        (kofn, "soft_knapsack", (1.0, -1.0), {}),
        (kofn, "soft_knapsack_value", (x[:2], 1.0), {}),
        (kofn, "KSubset", (2.5,), {}),
        (kofn, "segment_softmax", (), {}),
        (kofn, "segment_softmax", (), dict(segment_ids=ids)),
        (kofn, "temperature_for", (2,), {}),
        (kofn.distributed, "soft_topk", (2,), dict(axis_name="i")),
        (losses, "softmax_loss", (x[:2],), {}),
        (losses, "topk_loss", (x > 0,), dict(reduction="most")),
        (kofn, "soft_topk", (2,), dict(link="gumbel")),
        (kofn, "soft_topk", (2,), dict(temperature=0.0)),
        (kofn, "soft_topk", (2,), dict(temperature=x)),
        (kofn, "soft_topk", (2,), dict(dim=5)),
        (kofn, "soft_topk", (2,), dict(mask=x)),
        (kofn, "soft_topk", (2,), dict(mask=x[0] > 0)),
        (kofn, "soft_topk", (2,), dict(hard=2)),
    ]
    return [
        f"{kind}, {name} {number}: {said(partial(getattr(on, name), x, *given, **options))}"
        for number, (on, name, given, options) in enumerate(wrong)
    ]


# --- what the old side writes


class Choose(torch.nn.Module):
    """Operators of each family, in a program that torch.export saves."""

    def forward(self, x: torch.Tensor) -> tuple:
        t = x.detach().nan_to_num(0, 0, 0).abs().mean(-1) + 0.3
        costs = x.detach().nan_to_num(1, 1, 1).abs() + 0.1
        zeros = torch.zeros_like(x[..., 0], dtype=torch.int64)
        return (
            kofn.soft_topk(x, 2.5, link="exponential", temperature=t),
            kofn.soft_topk(x, 3, hard=True),
            kofn.soft_topk(x, 3, link=kofn.links.entmax(1 + t.clamp(max=0.9))),
            kofn.soft_topk_threshold(x, 2.0),
            kofn.soft_topk_sum(x, 2.0),
            kofn.hard_topk(x, 2.5),
            kofn.log_soft_topk(x, 2.0),
            kofn.topk_gates(x, 2)[0],
            kofn.entmax(x),
            kofn.sparse_softmax(x, k=4),
            kofn.soft_knapsack(x, costs, 2.0),
            kofn.soft_knapsack(x, costs, 2.0, hard=True),
            kofn.soft_knapsack_threshold(x, costs, 2.0),
            losses.softmax_loss(x, zeros, reduction="none"),
            losses.topk_loss(x, (x > 0.5).to(x.dtype), reduction="none"),
            kofn.KSubset(x, 2).marginals(),
        )


def chosen_by_jax(x: Any, k: Any) -> tuple:
    return (
        *(kofn.soft_topk(x, k, link=link) for link in ("logistic", "exponential")),
        kofn.soft_topk_sum(x, k),
        kofn.hard_topk(x, k),
        kofn.entmax(x, 1.3),
        kofn.soft_knapsack(x, x * x + 0.1, 2.0),
        losses.topk_loss(x, x > 0.5, reduction="none"),
        kofn.KSubset(x, 2).marginals(),
    )


def objects() -> dict[str, Any]:
    named = {f"link {name}": link for name, link in kofn.links.TABLE.items()}
    x = tensor()[:1]
    return named | {
        "entmax": kofn.links.entmax(1.3),
        "subset": kofn.KSubset(scores(), 2),
        "subset of torch": kofn.KSubset(x, 2),
        "categorical": kofn.Categorical(x),
        "bernoulli": kofn.Bernoulli(x),
        "plackett_luce": kofn.PlackettLuce(x),
        "relaxed": kofn.RelaxedOneHot(x, 0.5),
        "schedule": kofn.schedules.cosine(1.0, 0.1, 10),
        "until_hard": kofn.schedules.until_hard(1.0, 0.1, 10),
        "mean": kofn.estimators.RunningMean(),
        "plan": nn.dispatch_plan(torch.tensor([[0, 1], [2, 1]]), 3),
        "pruning": nn.PruningSchedule(10),
        **{name: each for name, each in modules().items() if not name.startswith("pruned")},
    }


def write() -> list[str]:
    """Write all that the new side has to read, and tell what cannot be written."""
    import jax

    told = []
    for name, each in objects().items():
        try:
            saved(f"{name}.pickle").write_bytes(pickle.dumps(each))
        except Exception as error:
            told.append(f"{name}: {error}")
    states = {name: module.state_dict() for name, module in modules().items()}
    torch.save(states, saved("states.pt"))
    torch.export.save(torch.export.export(Choose(), (tensor(),)), saved("choose.pt2"))
    program = jax.export.export(jax.jit(chosen_by_jax))(scores(), np.full(5, 2.5, "f"))
    saved("choose.jax").write_bytes(bytes(program.serialize()))
    back = jax.export.export(jax.jit(jax.grad(lambda x: kofn.soft_topk(x, 2)[0, 0])))(scores())
    saved("gradient.jax").write_bytes(bytes(back.serialize()))
    return told


def pickles() -> list[str]:
    """Read them, and say what they are; a module's weights are those of another task."""
    found = []
    for file in sorted(saved(".").glob("*.pickle")):
        each = pickle.loads(file.read_bytes())
        state = each.state_dict() if hasattr(each, "state_dict") else getattr(each, "__dict__", {})
        told = re.sub(r"0x[0-9a-f]+", "0x…", repr(each))
        found.append(f"{file.stem}: {type(each).__qualname__} {told}")
        found.append(f"{file.stem}: {sorted(map(str, state))}")
    return found


def loaded_states() -> list[str]:
    states, every = torch.load(saved("states.pt")), modules()
    return [f"{name}: {every[name].load_state_dict(state)}" for name, state in states.items()]


def torch_program() -> Record:
    program = torch.export.load(io.BytesIO(saved("choose.pt2").read_bytes()))
    return recorded(program.module()(tensor().flip(-1)))


def jax_programs() -> Record:
    import jax

    x, k = scores(), np.full(5, 2.5, "f")
    choose, gradient = (
        jax.export.deserialize(bytearray(saved(f"{name}.jax").read_bytes()))
        for name in ("choose", "gradient")
    )
    return recorded([*choose.call(x, k), gradient.call(x)])


def gpu() -> Record:
    """A few rows by the GPU's kernels, which Triton interprets."""
    from kofn import kernels
    from kofn.kernels import cpu

    places = "kofn.kernels.gpu.rows.launch", "kofn.kernels.gpu.subsets.launch"
    kernels.BACKENDS = (kernels.Backend(cpu.serves, *places),)
    found = []
    for link in ("logistic", "normal", "exponential", kofn.links.entmax(1.3)):
        for dtype in (torch.float32, torch.bfloat16):
            x = tensor().to(dtype).requires_grad_()
            k, t = (torch.full((5,), v).requires_grad_() for v in (2.5, 0.7))
            y = kofn.soft_topk(x, k, link=link, temperature=t)
            found += [y, *torch.autograd.grad(y, (x, k, t), torch.ones_like(y).cumsum(-1))]
    found += [kofn.KSubset(tensor(), 3).marginals(), kofn.KSubset(tensor(), 3).log_partition()]
    return recorded(found)


TASKS: dict[str, Callable[[], Any]] = {
    f"contract/{task.__name__}": task
    for task in (
        *(schemas, public_signatures, states, steps_of_modules, errors, write),
        *(pickles, loaded_states, torch_program, jax_programs, gpu),
    )
}
