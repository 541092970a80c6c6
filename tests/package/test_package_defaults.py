"""PyTorch's defaults, of device and of dtype, are for what users make: kofn follows its arguments.

Every function of PyTorch that makes a tensor takes a default where nothing else is said. A kernel
that writes to memory by address has none on another device.
"""

import ast
import contextlib
import os
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device

import kofn
from calls import CALLS, Call, flat
from kofn import nn, schedules, streaming
from kofn.feature_selection import SoftTopKSelector
from kofn.integrations import expert_bias
from ranks import joined

PACKAGE = Path(kofn.__file__).parent
FACTORIES = {each.__name__ for each in _device._device_constructors()}
INTEGERS = {"arange", "randperm"}  # of integers, what they make has a dtype of its own

EXCEPTIONS = {
    ("arrays/kinds.py", "asarray"): "of JAX and NumPy alone",
    ("arrays/kinds.py", "full"): "of JAX and NumPy alone",
    ("arrays/operations.py", "arange"): "of JAX and NumPy alone",
    ("arrays/operations.py", "asarray"): "of JAX and NumPy alone",
    ("rows/kept.py", "as_tensor"): "of the dtype that NumPy has",
    ("arrays/torch/state.py", "randn"): "chosen first, and called with both",
    ("arrays/torch/state.py", "rand"): "chosen first, and called with both",
    ("integrations/expert_bias.py", "tensor"): "of the dtype that NumPy finds",
    ("integrations/torch_geometric.py", "empty"): "a parameter, made as PyTorch Geometric's are",
}
"""What makes a tensor without a device or a dtype, and why it may. Commands are processes of their
own, whose defaults nobody sets."""


@cache
def factories():
    """(file, function, line, names of the options) of all that makes a tensor in src/kofn."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in FACTORIES and _makes_tensors(node):
                call = parents[node]
                given = call.keywords if isinstance(call, ast.Call) else []
                options = {each.arg for each in given if each.arg}
                for each in given:
                    if each.arg is None:
                        options |= _options(tree, each.value)
                found.append((file, node.attr, node.lineno, options))
    return found


def _makes_tensors(node):
    owner = ast.unparse(node.value)
    return (
        owner in ("torch", "sys.modules['torch']") or owner.endswith("xp") or "namespace" in owner
    )


def _options(tree, value):
    """The names of options in a dict(…) that the module binds to the name."""
    made = (
        each.value
        for each in ast.walk(tree)
        if isinstance(each, (ast.Assign, ast.AnnAssign))
        and ast.unparse(each.targets[0] if isinstance(each, ast.Assign) else each.target)
        == ast.unparse(value)
    )
    return {each.arg for call in made if isinstance(call, ast.Call) for each in call.keywords}


def test_nothing_takes_a_default_device_or_dtype():
    found = factories()
    assert len(found) > 40  # the search works
    bad = {
        f"{file}:{line}: {name} without {what}"
        for file, name, line, options in found
        for what in ("device", "dtype")
        if what not in options
        and not (what == "dtype" and name in INTEGERS)
        and (file, name) not in EXCEPTIONS
        and not file.startswith("commands/")
    }
    assert not bad, "\n".join(sorted(bad))


def test_every_exception_is_met():
    assert {*EXCEPTIONS} <= {(file, name) for file, name, *_ in factories()}


@contextlib.contextmanager
def dtype_by_default(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def device_by_default(device):
    """As a program sets it for all of its length; torch.device(…) as a context is another way."""
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


class Watch(TorchFunctionMode):
    """Refuse what a function of PyTorch gives kofn in a default dtype that no argument has.

    Zeros and ones look the same in all of them.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        answer = function(*args, **kwargs or {})
        if _has_half(answer) and not _has_half((args, kwargs)):
            frame = sys._getframe(1)
            while frame is not None and f"{PACKAGE}{os.sep}" not in frame.f_code.co_filename:
                frame = frame.f_back
            if frame is not None:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise AssertionError(f"{place}: {function.__name__} has the default dtype")
        return answer


def _has_half(found):
    if isinstance(found, (tuple, list)):
        return any(map(_has_half, found))
    if isinstance(found, dict):
        return _has_half(list(found.values()))
    return isinstance(found, torch.Tensor) and found.dtype == torch.bfloat16


@contextlib.contextmanager
def watched_bfloat16():
    with dtype_by_default(torch.bfloat16), Watch():
        yield


DEFAULTS = {
    "meta": lambda: torch.device("meta"),
    "set meta": lambda: device_by_default("meta"),
    "bfloat16": watched_bfloat16,
    "float64": lambda: dtype_by_default(torch.float64),
}


def answers(call, default=contextlib.nullcontext):
    """All that a call gives, and the gradients in what is learned."""
    given = call.made("torch", "float32") if isinstance(call, Call) else {}
    leaves = [given[name].requires_grad_() for name in getattr(call, "learned", ())]
    with torch.random.fork_rng(), default():
        torch.manual_seed(0)
        found = [*call("torch", "float32", **given)] if given else [*flat(call())]
        learned = [each for each in found if getattr(each, "requires_grad", False)]
        if leaves:
            sum(each.square().sum() for each in learned).backward()
    return found + [leaf.grad for leaf in leaves]


def router():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cool = schedules.linear(1, 0.1, 7)
        net = nn.TopKRouter(4, 6, 2, balance="quantile", temperature=cool, **OWN)
    first = net(ROWS)
    nn.step_routers(net)
    return first, net(ROWS), net.statistics(), net.state_dict(), net.current_temperature()


def autoencoder():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cool = schedules.linear(1, 0.1, 7)
        net = nn.TopKSAE(4, 6, 2, selection="batch", temperature=cool, **OWN)
    for _ in range(3):
        net(ROWS)
        net.step()
    found = net(ROWS), net.statistics(), net.state_dict(), net.current_temperature()
    net.calibrate(ROWS)
    coded = net.eval()(ROWS)
    net.initialize(ROWS)
    return found, coded, net.state_dict()


def pruned():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8, **OWN), torch.nn.Linear(8, 4, **OWN))
    pruner = nn.prune(net, 0.5, schedule=nn.PruningSchedule(4))
    found = []
    for _ in range(3):
        found.append(net(ROWS).detach())
        pruner.step()
    masks = pruner.masks()
    pruner.finalize()
    return found, masks, net(ROWS)


def selected():
    labels = (TABLE[:, 1] > 0).astype(int)
    ways = dict(k=2), dict(costs=np.ones(6), budget=2.0)
    made = (SoftTopKSelector(**how, steps=4, ensemble=2, random_state=0) for how in ways)
    return [each.fit(TABLE, labels).scores_ for each in made]


def biased():
    net = nn.TopKRouter(4, 6, 2, balance="quantile", score_function="sigmoid", **OWN)
    expert_bias.load_expert_bias(net, {"expert_bias_E": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]})
    return net.balance.bias, expert_bias.export_expert_bias(net, "deepseek")


def heads():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.SparseAttention(4, 2, learned=("alpha",), batch_first=True, **OWN)
    net.reset_parameters()
    return net(*(ROWS[None],) * 3)[0]


def until_hard():
    schedule = schedules.until_hard(1.0, 0.1, 7)
    return schedule(STEP), schedule.next(STEP, GAP)


OWN = dict(device="cpu", dtype=torch.float32)
"""Of modules: what they are made with does not come from a default."""
ROWS = torch.randn(7, 4, generator=torch.Generator().manual_seed(5))
STEP, GAP = torch.tensor(3), torch.tensor(0.3)
TABLE = np.random.default_rng(5).normal(size=(40, 6))
OTHERS = {
    "nn.TopKRouter, over steps": router,
    "nn.TopKSAE, over steps": autoencoder,
    "nn.prune": pruned,
    "nn.SparseAttention with learned alpha": heads,
    "schedules.until_hard": until_hard,
    **{
        f"schedules.{name}": lambda name=name: getattr(schedules, name)(1.0, 0.1, 7)(STEP)
        for name in ("cosine", "exponential", "linear")
    },
    "feature_selection.SoftTopKSelector": selected,
    "integrations.expert_bias": biased,
    "streaming of tensors": lambda: streaming.soft_topk([ROWS[0].clone(), ROWS[1].clone()], 2),
}
"""What has steps or a state, which the table of calls leaves out."""
EVERY = {call.name: call for call in CALLS if "torch" in call.frameworks} | OTHERS


@pytest.fixture(scope="module", autouse=True)
def group():
    with joined(torch.distributed.HashStore(), 0, 1, "on"):
        yield


@pytest.mark.parametrize("name", EVERY)
def test_answers_do_not_depend_on_a_default(name):
    wanted = answers(EVERY[name])
    for default, made in DEFAULTS.items():
        found = answers(EVERY[name], made)
        assert len(found) == len(wanted)
        # A schedule has the default dtype for whole steps, if it is wide.
        counted = default == "float64" and name in OTHERS
        # Bits of products of matrices depend on where these lie in memory: of two runs without a
        # default as well, by up to 1.5e-8.
        trained = "SoftTopKSelector" in name
        for one, other in zip(found, wanted, strict=True):
            _check_same(one, other, default, 1e-6 if counted else 1e-7 if trained else 0.0)


def _check_same(one, other, default, tolerance):
    if isinstance(other, torch.Tensor):
        assert one.device == other.device, default
        assert one.dtype == other.dtype or (tolerance and one.dtype == torch.float64), default
        torch.testing.assert_close(
            one, other, rtol=tolerance, atol=tolerance, equal_nan=True, check_dtype=False
        )
    elif isinstance(other, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif isinstance(other, (float, int, str)):
        assert one == other or (one != one and other != other), default


@pytest.mark.full
@pytest.mark.parametrize("name", EVERY)
def test_answers_of_array_code_do_not_depend_on_a_default(name, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    test_answers_do_not_depend_on_a_default(name)


def test_parameters_go_where_the_default_says():
    """What users make is theirs: modules are made on the default device, as PyTorch's are."""
    with torch.device("meta"):
        made = [
            nn.TopKRouter(4, 6, 2, balance="quantile"),
            nn.SparseAttention(4, 2, learned=("alpha",)),
            nn.TopKSAE(4, 6, 2, selection="batch"),
            nn.SoftTopK(4, 2, schedule=9),
        ]
    for net in made:
        assert {each.device.type for each in (*net.parameters(), *net.buffers())} == {"meta"}
