"""Losses with their mean as one node of autograd: the answers and slopes of the long way."""

import math
from functools import partial

import pytest
import torch
import torch.utils.checkpoint

from kofn import losses
from kofn.adapters import labelled
from kofn.links.table import TABLE


def of_cosines(name):
    """A loss with a margin of scores, whose cosines are less than 1."""

    def loss(x, target, **options):
        whole, logits = getattr(losses, name)(x.tanh(), target, **options)
        return whole + 0.1 * logits.masked_fill(logits.isinf(), 0.0).cos().mean()

    return loss


LOSSES = {
    "softmax": losses.softmax_loss,
    "sparsemax": losses.sparsemax_loss,
    "entmax": losses.entmax_loss,
    "alpha": partial(losses.entmax_loss, alpha=1.3),
    "topk_cross_entropy": partial(losses.topk_cross_entropy, k=3),
    "am_softmax": of_cosines("am_softmax"),
    "arcface": of_cosines("arcface"),
    **{f"topk {name}": partial(losses.topk_loss, link=name) for name in TABLE},
    **{f"weights {name}": partial(losses.topk_loss, link=name) for name in TABLE},
}
WIDTHS = [12, 300]


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch):
    monkeypatch.setattr(labelled, "_kept", {})
    monkeypatch.delenv("KOFN_KERNELS", raising=False)


def rows(n, dtype):
    """Scores with masked ones, and labels that have no score of −inf."""
    x = 2 * torch.randn(7, n, generator=torch.Generator().manual_seed(n), dtype=dtype)
    x[3, ::2] = -math.inf
    return x, torch.tensor([0, 5, n - 1, 1, 3, 2, 7])


def target_of(name, n, dtype):
    x, labels = rows(n, dtype)
    if not name.startswith("weights"):
        return x, labels
    return x, torch.zeros(7, n, dtype=dtype).scatter_(1, (labels[:, None] + 2) % n, 1.0)


def all_of(loss, x):
    """The loss, its slopes, second ones, and the loss that nothing records."""
    x = x.clone().requires_grad_()
    found = loss(x)
    (slopes,) = torch.autograd.grad(3 * found, x, retain_graph=True)
    (first,) = torch.autograd.grad(found, x, create_graph=True)
    (second,) = torch.autograd.grad((first * first.detach().cos()).sum(), x)
    return found.detach(), slopes, second, loss(x.detach())


def long_way(monkeypatch):
    monkeypatch.setattr(labelled, "reduced", lambda *_, **__: None)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("name", LOSSES)
def test_one_node_has_the_bits_of_the_long_way(name, n, reduction, monkeypatch):
    dtype = torch.float64 if n == 12 else torch.float32
    x, target = target_of(name, n, dtype)
    loss = partial(LOSSES[name], target=target, reduction=reduction, temperature=0.7)
    found = all_of(loss, x)
    assert any(labelled._kept.values()) or name == "weights entmax"
    long_way(monkeypatch)
    for one, other in zip(found, all_of(loss, x), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("name", ["sparsemax", "topk logistic", "topk laplace", "weights linear"])
def test_a_mean_over_a_power_of_2_is_taken_where_slopes_are_written(name, n, monkeypatch):
    """Its share rounds nothing: all bits are those of the long way."""
    x, target = (torch.cat([each, each[:1]]) for each in target_of(name, n, torch.float32))
    loss = partial(LOSSES[name], target=target)
    found = all_of(loss, x)
    assert [call.share for call in labelled._kept.values()] == [8]
    long_way(monkeypatch)
    for one, other in zip(found, all_of(loss, x), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["sparsemax", "topk logistic"])
def test_several_threads_have_the_bits_of_one(name):
    """Of so many rows that they would share them."""
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    loss, threads, found = (
        partial(LOSSES[name], target=torch.arange(64)),
        torch.get_num_threads(),
        [],
    )
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(all_of(loss, x))
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["softmax", "entmax", "topk logistic", "weights logistic"])
def test_scores_of_16_bits_are_rounded_once(name, dtype, monkeypatch):
    x, target = target_of(name, 300, dtype)
    loss = partial(LOSSES[name], target=target, temperature=0.7)
    found, slopes, second, unrecorded = all_of(loss, x)
    assert labelled._kept
    assert all(labelled._kept.values())
    long_way(monkeypatch)
    known, its_slopes, its_second, _ = all_of(loss, x)
    assert found.dtype == unrecorded.dtype == torch.float32
    assert slopes.dtype == dtype
    assert torch.equal(slopes, its_slopes)
    torch.testing.assert_close(found, known)
    torch.testing.assert_close(second, its_second)


def test_a_boolean_target_goes_by_the_node(monkeypatch):
    x, target = target_of("weights logistic", 300, torch.float32)
    found = all_of(partial(losses.topk_loss, target=target.bool()), x)
    assert labelled._kept
    assert all(labelled._kept.values())
    for one, other in zip(found, all_of(partial(losses.topk_loss, target=target), x), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("case", ["ignored", "range", "infinite", "masked", "none", "spoilt"])
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "topk_cross_entropy", "arcface"])
def test_unusual_rows_go_the_long_way(name, case, monkeypatch):
    x, labels = rows(12, torch.float64)
    if case in ("ignored", "range"):
        labels[2] = -100 if case == "ignored" else 12
    elif case == "infinite":
        x[1, 3] = math.inf
    elif case == "spoilt":
        x[1, 3] = math.nan
    else:
        x[4] = -math.inf
        x[4, labels[4] - 1] = 0.0 if case == "masked" else -math.inf
    loss = partial(LOSSES[name], target=labels)
    if case == "range":
        with pytest.raises(ValueError, match=r"target must have indices in \[0, 12\)"):
            loss(x)
        return
    found = all_of(loss, x)
    long_way(monkeypatch)
    for one, other in zip(found, all_of(loss, x), strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def test_no_label_is_read_beyond_its_row():
    """It would be the memory of another row, or of nobody."""
    x, labels = rows(300, torch.float32)
    for name in ("softmax", "sparsemax", "topk linear", "am_softmax"):
        for label in (-(2**40), -1, 300, 2**40):
            labels[3] = label
            with pytest.raises(ValueError, match=f"got {label}"):
                LOSSES[name](x, labels)


def test_wrong_arguments_have_their_errors():
    x, labels = rows(12, torch.float32)
    for wrong, error in (
        (dict(reduction="all"), "reduction"),
        (dict(temperature=-1), "temperature"),
        (dict(dim=0), "target"),
        (dict(link="none"), "link"),
        (dict(link=1.5), "link"),
        (dict(label_smoothing=2), "label_smoothing"),
        (dict(mask=3), "mask"),
        (dict(ignore_index=0.5), "ignore_index"),
    ):
        with pytest.raises((TypeError, ValueError), match=error):
            losses.topk_loss(x, labels, **wrong)
    for k in (0, 13):
        with pytest.raises(ValueError, match="k must be"):
            losses.topk_cross_entropy(x, labels, k)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "topk_cross_entropy", "arcface"])
def test_a_checkpoint_keeps_as_many_tensors_again(name):
    x, labels = rows(12, torch.float64)
    x = x.requires_grad_()
    again = torch.utils.checkpoint.checkpoint(LOSSES[name], x, labels, use_reentrant=False)
    (slopes,) = torch.autograd.grad(again, x)
    assert torch.equal(slopes, torch.autograd.grad(LOSSES[name](x, labels), x)[0])


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "topk logistic", "weights logistic"])
def test_scores_are_not_kept(name):
    """p − t is enough for derivatives of any order."""
    kept = []
    x, target = target_of(name, 300, torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda each: kept.append(each) or each, lambda each: each
    ):
        LOSSES[name](x.requires_grad_(), target)
    assert not any(each.data_ptr() == x.data_ptr() for each in kept)
    assert sum(each.numel() == x.numel() for each in kept) == 1 + (target.shape == x.shape)


def test_slopes_take_the_memory_of_what_was_kept_for_them_alone():
    kept = []
    x, labels = rows(300, torch.float32)
    x = x.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda each: kept.append(each) or each, lambda each: each
    ):
        loss = losses.topk_loss(x, labels)
    loss.backward(retain_graph=True)
    first, places = x.grad, [each.data_ptr() for each in kept]
    assert first.data_ptr() not in places
    wanted = first.clone()
    x.grad = None
    loss.backward()
    assert x.grad.data_ptr() in places
    assert torch.equal(first, wanted)
    assert torch.equal(x.grad, wanted)


@pytest.mark.parametrize("name", ["softmax", "topk logistic", "arcface"])
def test_a_loss_and_its_slopes_are_differentiated_together(name, monkeypatch):
    """Both cotangents come at once, and the last time."""
    x, labels = rows(300, torch.float32)

    def of_both():
        leaf = x.clone().requires_grad_()
        loss = LOSSES[name](leaf, labels)
        (slopes,) = torch.autograd.grad(loss, leaf, create_graph=True)
        (loss + (slopes * slopes.detach().cos()).sum()).backward()
        return leaf.grad

    found = of_both()
    long_way(monkeypatch)
    assert torch.equal(found, of_both())


def test_slopes_that_are_recorded_keep_what_they_are_made_of():
    x, labels = rows(300, torch.float32)
    x = x.requires_grad_()
    by = torch.tensor(2.0, requires_grad=True)
    loss = losses.topk_loss(x, labels)
    (slopes,) = torch.autograd.grad(loss, x, by, create_graph=True)
    (plain,) = torch.autograd.grad(loss, x)
    (in_by,) = torch.autograd.grad((slopes * labels[:, None]).sum(), by)
    torch.testing.assert_close(in_by, (plain * labels[:, None]).sum())
    assert torch.equal(2 * plain, slopes)


def test_calls_that_are_kept_are_few(monkeypatch):
    monkeypatch.setattr(labelled, "MOST", 2)
    for n in range(2, 7):
        losses.softmax_loss(torch.zeros(1, n), torch.tensor([0]))
    assert 0 < len(labelled._kept) <= 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "loss",
    [
        lambda x, t: losses.am_softmax(x, t),
        lambda x, t: losses.arcface(x, t),
        lambda x, t: (losses.topk_cross_entropy(x, t, 3),),
    ],
)
def test_scores_of_16_bits_have_the_losses_of_a_wider_copy(loss, dtype):
    x = torch.linspace(-0.9, 0.9, 40).roll(7).reshape(4, 10).to(dtype).requires_grad_()
    wide = x.detach().float().requires_grad_()
    t = torch.tensor([3, 0, 9, 5])
    (value, *logits), (exact, *others) = loss(x, t), loss(wide, t)
    assert value.dtype is torch.float32
    assert torch.equal(value, exact)
    for mine, other in zip(logits, others, strict=True):
        assert torch.equal(mine, other.to(dtype))
    (slope,), (wide_slope,) = torch.autograd.grad(value, x), torch.autograd.grad(exact, wide)
    assert torch.equal(slope, wide_slope.to(dtype))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax", "alpha", "topk logistic"])
@pytest.mark.parametrize("rows", [3, 128])
def test_narrow_scores_have_the_bits_of_a_wider_copy(name, dtype, threads, rows):
    """Whether they are copied at once or by blocks; numbers out of play are so in either type."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = (3 * torch.randn(rows, 300, generator=torch.Generator().manual_seed(1))).to(dtype)
        x[:, 7] = torch.finfo(dtype).min / 2
        wide, labels = x.float().masked_fill(x <= x[0, 7], -math.inf), torch.arange(rows) % 7
        for target in (labels, torch.nn.functional.one_hot(labels, 300).bool()):
            mine, other = x.requires_grad_(), wide.requires_grad_()
            value, exact = (LOSSES[name](each, target) for each in (mine, other))
            assert torch.equal(value, exact)
            (slope,), (exact,) = torch.autograd.grad(value, mine), torch.autograd.grad(exact, other)
            assert torch.equal(slope, exact.to(dtype))
    finally:
        torch.set_num_threads(before)
