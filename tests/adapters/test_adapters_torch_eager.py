"""One autograd.Function serves every eager first derivative; autograd must find all of it saved."""

import contextlib
import gc
import weakref

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import kofn
from kofn import losses
from kofn.adapters import route
from kofn.adapters.torch import eager as torch_eager
from kofn.operations import signatures
from kofn.operations.operation import Operation
from kofn.operations.truncated import LEAST

TARGET = torch.zeros(3, 12).scatter(-1, torch.tensor([[1, 4], [0, 2], [7, 3]]), 1.0)
BY_RULE = {
    "weights": lambda x: kofn.soft_topk(x, 2),
    "value": lambda x: kofn.soft_topk_sum(x, 2),
    "loss": lambda x: losses.topk_loss(x, TARGET.to(x), reduction="none"),
    "logarithm": lambda x: kofn.log_soft_topk(x, 2),
    "softmax": lambda x: kofn.softmax(x),
    "marginals": lambda x: kofn.KSubset(x, 2).marginals(),
    "log_partition": lambda x: kofn.KSubset(x, 2).log_partition(),
    "argmax": lambda x: kofn.perturbed_argmax(x, noise="normal"),
}
each = pytest.mark.parametrize("name", BY_RULE)


def scores():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(3, 12, generator=rng, dtype=torch.float64).requires_grad_()


def gradient(function, x, wrap=lambda f, x: f(x)):
    answer = wrap(function, x)
    weighted = (answer * torch.arange(1.0, 1 + answer.numel()).reshape(answer.shape)).sum()
    return torch.autograd.grad(weighted, x)[0]


@each
@pytest.mark.usefixtures("kernels_on")
def test_it_is_by_the_rule(name, monkeypatch):
    served = []
    which = torch_eager._Onward if name == "loss" else torch_eager._Recorded
    forward = which.forward
    monkeypatch.setattr(which, "forward", staticmethod(lambda *a: served.append(1) or forward(*a)))
    BY_RULE[name](scores())
    assert served


@each
@pytest.mark.parametrize("changed", ["input", "answer"])
def test_what_is_changed_before_the_way_back_is_told_or_does_not_matter(name, changed):
    plain = gradient(BY_RULE[name], scores())
    leaf = scores()
    x = leaf * 1
    answer = BY_RULE[name](x)
    factors = torch.arange(1.0, 1 + answer.numel()).reshape(answer.shape)
    with torch.no_grad():
        (x if changed == "input" else answer).add_(1)
    try:
        (answer * factors).sum().backward()
    except RuntimeError as error:
        message = str(error)
    else:
        message = None
    if message is None:
        torch.testing.assert_close(leaf.grad, plain)
    else:
        assert "modified by an inplace operation" in message


@pytest.mark.usefixtures("kernels_on")
def test_a_changed_input_of_a_fused_map_is_told():
    x = scores() * 1
    answer = kofn.soft_topk(x, 2)
    x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        answer.sum().backward()


@each
def test_hooks_see_all_that_is_saved(name):
    """Packed as copies and poisoned: whatever is not saved by autograd would keep its memory."""
    x = scores()
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.detach().clone()

    with saved_tensors_hooks(pack, lambda copy: copy):
        found = gradient(BY_RULE[name], x)
    torch.testing.assert_close(found, gradient(BY_RULE[name], x))
    assert packed
    with save_on_cpu():
        torch.testing.assert_close(gradient(BY_RULE[name], x), found)


@pytest.mark.parametrize("function", [kofn.soft_topk, kofn.soft_topk_sum])
def test_what_k_and_the_temperature_get_back_survives_hooks(function):
    """The way back asks the saved tensors whether they are learned, and hooks replace those."""

    def found(hooks):
        x, k, t = scores(), *(torch.tensor(a).double().requires_grad_() for a in (2.0, 0.7))
        with hooks:
            answer = function(x, k, temperature=t)
        weighted = answer * torch.arange(1.0, 1 + answer.numel()).reshape(answer.shape)
        return torch.autograd.grad(weighted.sum(), (x, k, t))

    plain = found(contextlib.nullcontext())
    assert all(bool(part.abs().max() > 0) for part in plain)
    copied = saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda copy: copy)
    for hooks in (copied, save_on_cpu()):
        assert all(map(torch.equal, found(hooks), plain))


@each
@pytest.mark.parametrize("reentrant", [False, True])
def test_under_activation_checkpointing(name, reentrant):
    x, again = scores(), scores()
    checkpoint(BY_RULE[name], x, use_reentrant=reentrant).sum().backward()
    BY_RULE[name](again).sum().backward()
    torch.testing.assert_close(x.grad, again.grad)


@each
def test_memory_is_freed_by_the_way_back(name):
    x = scores()
    kept = []

    def pack(tensor):
        holder = tensor.detach().clone()
        kept.append(weakref.ref(holder))
        return holder

    with saved_tensors_hooks(pack, lambda holder: holder):
        answer = BY_RULE[name](x).sum()
        answer.backward()
    if any(holder() is not None for holder in kept):
        gc.collect()
    assert answer.requires_grad  # the graph is still there, what it saved is not
    assert kept
    assert not any(holder() is not None for holder in kept)


@each
def test_second_derivatives_are_those_of_the_plain_code(name, monkeypatch):
    x = scores()

    def second():
        (first,) = torch.autograd.grad(BY_RULE[name](x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    by_the_rule = second()
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    torch.testing.assert_close(by_the_rule, second(), rtol=1e-7, atol=1e-10)


def operation(kernel, gives, pulled, plain):
    """An operation on a tensor alone, whose way back takes what it gives."""
    kept = gives.partition(", ")[2]
    takes = f"cotangent n, x n, {kept}"
    of = signatures.scores("x", "rows")
    back = Operation("", takes, "x n", of, lambda _, x, v, kept: pulled(v, kept), plain=plain)
    return Operation("", "x n", gives, of, lambda _, x: kernel(x), back=(back,))


def test_an_operation_of_ones_own():
    """cube, whose pullback is wrong on purpose, and whose plain code is right."""
    cube = operation(
        lambda x: (x**3, x.square()),
        "cube n, square n",
        lambda v, square: v * 100 * square,
        lambda x, v, square: v * 3 * x.square(),
    )
    x = torch.tensor(2.0, requires_grad=True)
    assert torch.autograd.grad(route.computed(cube, None, x, ()), x)[0] == 400
    (first,) = torch.autograd.grad(route.computed(cube, None, x, ()), x, create_graph=True)
    assert first == 12
    assert torch.autograd.grad(first, x)[0] == 12
    with torch.no_grad():
        assert not route.computed(cube, None, x, ()).requires_grad


def test_what_an_operation_keeps_is_seen_by_hooks_and_freed():
    made, packed = [], []

    def value(x):
        kept = x.detach() * 3
        made.append(weakref.ref(kept))
        return x**3, kept

    own = operation(value, "cube n, kept n", lambda v, kept: v * kept, None)
    x = torch.tensor(2.0, requires_grad=True)
    with saved_tensors_hooks(lambda t: packed.append(t.clone()) or packed[-1], lambda t: t):
        answer = route.computed(own, None, x, ())
    assert [t.item() for t in packed] == [2.0, 6.0]
    answer = route.computed(own, None, x, ())
    assert made[-1]() is not None
    answer.backward()
    gc.collect()
    assert made[-1]() is None
    with pytest.raises(RuntimeError, match="second time"):
        answer.backward()


@each
def test_a_call_keeps_nothing_beside_what_autograd_saves(name):
    """Else neither hooks that move saved tensors elsewhere nor checkpoints would free memory."""
    x = scores() * 1
    with saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor):
        answer = BY_RULE[name](x)
    held = weakref.ref(x)
    del x
    gc.collect()
    assert held() is None
    assert answer.requires_grad


@pytest.mark.parametrize("ptr", [[0, 4, 8], [0, 3, 8]])
def test_a_set_that_is_learned_from_is_found_by_kernels(ptr, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("by array code")

    monkeypatch.setattr(LEAST, "plain", refuse)
    x, of = torch.linspace(0, 1, 8).sin().requires_grad_(), dict(ptr=torch.tensor(ptr), k=2, p=0.9)
    losses.segment_sparse_softmax_loss(x, torch.tensor([1, 6]), **of).backward()
    kofn.segment_sparse_softmax(x, **of).square().sum().backward()
    assert x.grad.isfinite().all()
