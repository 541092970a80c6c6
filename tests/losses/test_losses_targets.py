"""Targets of the losses: what is refused, and what is as if deleted in every loss."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from calls import CALLS, array_of
from kofn.arrays.operations import as_numbers
from kofn.losses import accuracy_loss, softmax_loss, topk_loss
from rows_of_users import least_in_play
from support import Framework
from test_losses_family import LOSSES, WITH_IGNORED, loss_of

X = np.tanh(np.random.default_rng(2).standard_normal((4, 5)))


@pytest.mark.parametrize("wrong", [9, 5, -1])
@pytest.mark.parametrize("name", WITH_IGNORED)
def test_an_index_that_is_none_is_refused(name, wrong):
    """It gave NaN, silently; as a mean, NaN for the whole batch."""
    for kind in ("numpy", "torch"):
        framework = Framework(kind)
        x, t = framework.array(X), framework.array([0, wrong, 2, 3], "int64")
        with pytest.raises(
            ValueError, match=rf"indices in \[0, 5\), or ignore_index.*got {wrong}$"
        ):
            loss_of(name)(x, t)
    kept = loss_of(name)(X, np.array([0, wrong, 2, 3]), ignore_index=wrong)
    assert not np.isnan(kept)


def test_indices_that_keep_their_dimension_are_told_the_shape_that_is_meant():
    with pytest.raises(ValueError, match=r"got \(4, 1\); for indices squeeze it to \(4,\)$"):
        softmax_loss(X, np.zeros((4, 1), int))


def test_where_looking_would_wait_or_trace_its_row_is_nan():
    t = np.array([0, 9, -100, 3])
    traced = jax.jit(lambda x, t: softmax_loss(x, t, reduction="none"))
    each = traced(jnp.asarray(X), jnp.asarray(t))
    assert np.array_equal(np.isnan(each), [False, True, False, False])
    for call in (softmax_loss, jax.jit(lambda x, _: softmax_loss(x, t))):  # labels at hand
        with pytest.raises(ValueError, match="got 9"):
            call(jnp.asarray(X), jnp.asarray(t))
    mapped = torch.func.vmap(lambda x, t: softmax_loss(x, t))(torch.tensor(X), torch.tensor(t))
    assert torch.isnan(mapped).tolist() == [False, True, False, False]
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, t: softmax_loss(x, t, reduction="none"), fullgraph=True, backend="eager"
    )
    assert torch.isnan(compiled(torch.tensor(X), torch.tensor(t))).tolist() == [
        False, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "bfloat16",
        *(pytest.param(d, marks=pytest.mark.full) for d in ("float64", "float16")),
    ],
)
@pytest.mark.parametrize("name", [n for n in LOSSES if n != "fenchel_young_loss"])
def test_an_additive_mask_deletes_in_every_loss(name, dtype):
    """Half precision is cast on the way, where its least number would be a score."""
    least = 2 * least_in_play(dtype)
    x = torch.tensor(X, dtype=getattr(torch, dtype))
    lost = torch.zeros(4, 5, dtype=torch.bool)
    lost[[0, 1, 1, 2], [1, 3, 4, 0]] = True
    lost[3] = True
    t = torch.tensor([0, 1, 2, 3])
    losses, slopes = [], []
    for value in (least, -math.inf):
        leaf = torch.where(lost, value, x).requires_grad_()
        each = loss_of(name)(leaf, t, reduction="none")
        losses.append(each.detach())
        slopes.append(torch.autograd.grad(each.sum(), leaf)[0])
    assert torch.equal(*losses)
    assert torch.equal(*slopes)
    assert losses[0].isfinite().all()
    assert losses[0][3] == 0
    assert not slopes[0][lost].any()


def test_the_accuracy_of_a_row_with_a_float16_mask():
    x = np.array([[1.0, -65504.0, 0.5, -65504.0]], "f2")
    labels = np.array([[1.0, 0, 1.0, 1.0]])  # k = 3 of two that are left
    assert accuracy_loss(x, labels, link="logistic") == pytest.approx(-2 / 3)


def test_boolean_targets_count_as_ones_and_zeros_however_they_lie_in_memory():
    scores, hot = torch.randn(5, 8), torch.rand(8, 10) < 0.4
    for target in (hot.T[::2], hot.T[::2].contiguous()):
        assert torch.equal(as_numbers(target, torch.float32), target.float())
        assert torch.equal(topk_loss(scores, target), topk_loss(scores, target.float()))
        loss = topk_loss(scores.numpy(), target.numpy())
        assert loss == pytest.approx(topk_loss(scores, target).item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_smoothing_of_weights_skips_entries_out_of_play(dtype):
    """Some of them, none, or only what is as low as a mask that was added gets."""
    x = torch.tensor([[1.0, -2.0, 0.5, 3.0]], dtype=dtype)
    hot = torch.tensor([[True, False, False, True]])
    for least in (-math.inf, torch.finfo(dtype).min):
        masked = torch.cat((x, x.new_full((1, 2), least)), -1)
        zeros = torch.zeros((1, 2), dtype=torch.bool)
        found, wanted = (
            topk_loss(at, target, label_smoothing=0.2)
            for at, target in ((masked, torch.cat((hot, zeros), -1)), (x, hot))
        )
        torch.testing.assert_close(found, wanted)
    weights = hot.float() * 0.8 + 0.2 * 2 / 4
    torch.testing.assert_close(wanted, topk_loss(x.float(), weights))


LABELLED = [
    call
    for call in CALLS
    if ".losses." in call.name
    and "segment" not in call.name
    and np.asarray(call.arguments.get("target", 0.0)).dtype.kind == "i"
]


@pytest.mark.parametrize("call", LABELLED, ids=lambda call: call.name)
def test_a_label_out_of_range_is_named_where_it_can_be_read(call, framework):
    for wrong in (5, -1):
        target = np.array(call.arguments["target"])
        target[-1] = wrong
        with pytest.raises(
            ValueError, match=rf"target must have indices in \[0, 5\).*got {wrong}$"
        ):
            call(framework.name, target=array_of(framework.name, target))
    target[-1] = -100  # ignored
    (loss,) = call(framework.name, target=array_of(framework.name, target))[:1]
    assert np.isfinite(framework.numpy(loss)).all()


def test_a_traced_label_out_of_range_makes_its_row_nan():
    scores, target = jnp.zeros((2, 3)), jnp.asarray([0, 9])
    loss = jax.jit(lambda target: softmax_loss(scores, target, reduction="none"))(target)
    assert np.array_equal(np.isnan(loss), [False, True])
    with pytest.raises(ValueError, match="got 9"):  # a constant of the trace
        jax.jit(lambda scores: softmax_loss(scores, target))(scores)
