"""DTensor: the calls of the table, in every placement, have the answers of whole tensors."""

import inspect
import itertools
import traceback

import numpy as np
import pytest
import torch
from torch import distributed

from calls import CALLS
from calls.data import X
from ranks import run_on_ranks

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)

# What refuses DTensors by name, or has tests of its own for shards.
OTHERS = ("segment_", ".distributed.", ".streaming.", ".estimators.", ".nn.", ".integrations.")
OTHERS += ("[kept]",)
TIED = np.array(
    [[1.0, np.nan, 1.0, 0.0, 2.0], [1.0] * 5, [2.0, -np.inf, 1.0, 2.0, 2.0]]
)  # and a row with a NaN in the first of two parts


def calls():
    for call in CALLS:
        of_rows = call.arguments[call.first].shape == X.shape and not call.random
        others = any(name in call.name for name in OTHERS)
        if "torch" in call.frameworks and of_rows and not others:
            yield call


def takes_dim(call):
    return "dim" in inspect.signature(call.function).parameters


def cases():
    """Every call with rows along each dimension, with and without ties, in each placement."""
    ways = range(4)
    for call in calls():
        dims = (-1, 0) if takes_dim(call) else (-1,)
        tied = (False, True) if call.first in ("scores", "x", "logits", "cosines") else (False,)
        for dim, ties, way in itertools.product(dims, tied, ways):
            yield call, dim, ties, way


def some():
    """Of the cases of each function, the one in which most can go wrong: cut rows, with ties."""
    tried = set()
    for case in sorted(cases(), key=lambda case: -case[2]):
        call, dim, _, way = case
        what = call.name.removeprefix("kofn.losses.").removeprefix("kofn.metrics.")
        if dim == -1 and way == 1 and what.removeprefix("kofn.") not in tried:
            tried.add(what.removeprefix("kofn."))
            yield case


def all_as_whole():
    same_as_whole(cases())


def some_as_whole():
    same_as_whole(some())


def same_as_whole(cases):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard

    mesh, wrong = init_device_mesh("cpu", (distributed.get_world_size(),)), []
    ways = (Shard(0), Shard(1), Replicate(), Partial())
    for call, dim, ties, way in cases:
        try:
            compare(call, dim, ties, ways[way], mesh)
        except Exception:
            said = traceback.format_exc(limit=-3)
            wrong.append(f"{call.name}, dim {dim}, {ways[way]}, ties {ties}: {said}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


def compare(call, dim, ties, way, mesh):
    from torch.distributed.tensor import Replicate

    given = call.made("torch", "float32")
    if ties:
        given[call.first] = torch.tensor(TIED / (3 if call.first == "cosines" else 1)).float()
    if "bias" in given and "quantile" not in call.name:  # there it is per expert
        given["bias"] = given["bias"].expand(*X.shape)
    turned = {name for name in call.arrays if given[name].shape == X.shape}
    if dim == 0:
        given |= {name: given[name].T.contiguous() for name in turned} | {"dim": 0}
    whole, part = dict(given), dict(given)
    for name in call.arrays:
        entries = way if name in turned and not way.is_partial() else Replicate()
        part[name] = placed(given[name], mesh, way if name == call.first else entries)
    learned = [name for name in call.learned if given[name].is_floating_point()]
    for each in (whole, part):
        each |= {name: each[name].detach().requires_grad_() for name in learned}
    wanted, found = call("torch", **whole), call("torch", **part)
    assert len(found) == len(wanted)
    if call.public == "kofn.soft_topk" and not way.is_partial():
        assert found[0].placements == (way,)
    noise = torch.Generator().manual_seed(1)
    for ours, theirs in zip(found, wanted, strict=True):
        same(ours, theirs)
        if theirs.requires_grad:
            v = torch.randn(theirs.shape, generator=noise)
            cotangents = [placed(v, mesh, Replicate()), v]
            for pair in zip(
                pulled(ours, part, learned, cotangents[0]),
                pulled(theirs, whole, learned, cotangents[1]),
                strict=True,
            ):
                assert (pair[0] is None) == (pair[1] is None)
                if pair[0] is not None:
                    same(*pair)


def pulled(answer, given, learned, cotangent):
    leaves = [given[name] for name in learned]
    return torch.autograd.grad(answer, leaves, cotangent, retain_graph=True, allow_unused=True)


def same(ours, theirs):
    ours, theirs = ours.detach().full_tensor(), theirs.detach()
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=3e-5, atol=5e-6)


def placed(x, mesh, way):
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not way.is_partial():
        return distribute_tensor(x, mesh, [way])
    mine = x if distributed.get_rank() == 0 else torch.zeros_like(x)
    return DTensor.from_local(mine, mesh, [way], run_check=False)


@pytest.mark.parametrize(
    ("task", "kernels"),
    [
        (some_as_whole, "on"),
        pytest.param(all_as_whole, "on", marks=pytest.mark.full),
        pytest.param(some_as_whole, "reference", marks=pytest.mark.full),
    ],
)
def test_sharded_rows_have_the_answers_of_whole_ones(tmp_path, task, kernels):
    run_on_ranks(tmp_path / "store", 2, task, kernels=kernels)
