"""Losses and logarithms from a kernel's θ, against array code in float64."""

import math
from functools import partial
from itertools import product

import pytest
import torch

import kofn
from kofn import losses
from support import LINKS

N = 9
ORDINARY = (
    ("softmax", "mean"),
    ("sparsemax", "none"),
    ("topk of weights", "mean"),
    ("log", "mean"),
)
OF_NAME = {
    "log": partial(losses.topk_cross_entropy, k=(0.5, 0.5)),
    "epsilon": losses.epsilon_cross_entropy,
    "sets": partial(losses.sparse_softmax_loss, k=3),
}
LABELS = torch.tensor([[0, 2, 3, 1, 5, 4, 2, 8, 1], [3, 1, 0, 1, 1, 2, 4, 0, 1]])


def rows():
    """Ordinary, with +inf, masked, tied, with a NaN, next to the least number, far apart, empty."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, N, generator=generator)
    x[1, 2] = x[6, 2] = x[6, 5] = math.inf
    x[2, 3], x[3], x[4, 1], x[5, 4] = -math.inf, 1.0, math.nan, torch.finfo(x.dtype).min
    x[7], x[8] = torch.arange(9.0) * 40, -math.inf
    return x, generator


def compared(function, reference, x, *others, rtol=2e-5):
    """Compare losses and their gradients in the scores, the temperature and all others."""
    leaves = (x, torch.full((N,), 0.7), *others)
    wide = (torch.where(x <= torch.finfo(x.dtype).min, -math.inf, x), *leaves[1:])

    def called(*given):
        given = [each.clone().requires_grad_() for each in given]
        out = function(given[0], *given[2:], reduction="none", temperature=given[1])
        cotangent = torch.linspace(1, 2, N, dtype=out.dtype)
        return out.detach(), *torch.autograd.grad(out, given, cotangent)

    truth = reference(called, *(each.double() for each in wide))
    for found, wanted in zip(called(*leaves), truth, strict=True):
        torch.testing.assert_close(
            found, wanted.to(found.dtype), rtol=rtol, atol=2e-6, equal_nan=True
        )


@pytest.mark.parametrize("labels", LABELS, ids=["usual", "impossible"])
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax", "accuracy"])
def test_losses_at_labels(name, labels, reference):
    loss = getattr(losses, f"{name}_loss")
    compared(lambda x, **how: loss(x, labels, **how), reference, rows()[0])


@pytest.mark.parametrize("kind", ["flags", "weights"])
@pytest.mark.parametrize("link", LINKS)
def test_losses_at_targets(link, kind, reference):
    x, generator = rows()
    if link == "exponential":
        target = torch.rand(N, N, generator=generator).softmax(-1)
    else:
        target = 3 * torch.rand(N, N, generator=generator).softmax(-1)
    if kind == "flags":
        target = torch.zeros(N, N, dtype=torch.bool).scatter_(-1, target.topk(3).indices, True)
    if link == "exponential" and kind == "flags":
        target = target & (target.cumsum(-1) == 1)

    def loss(x, **how):
        given = target.to(x.dtype) if kind == "weights" else target
        return losses.fenchel_young_loss(x, given, link=link, **how)

    compared(loss, reference, x)


@pytest.mark.parametrize(
    ("name", "reduction"),
    [
        pytest.param(*one, marks=() if one in ORDINARY else pytest.mark.full)
        for one in product(
            ("softmax", "sparsemax", "topk", "topk of weights", "accuracy", *OF_NAME),
            ("mean", "sum", "none"),
        )
    ],
)
def test_class_weights_and_ignored_labels(name, reduction, reference):
    """And rows without an available entry, and labels that cannot be: sums of their losses, too."""
    x, generator = rows()
    x = torch.stack((x, x.flip(1)))  # two dimensions of rows
    labels = LABELS.clone()
    labels[0, 4], labels[1, :2] = -100, -100
    weight = torch.rand(N, generator=generator)
    weight[1] = 0.0
    loss = OF_NAME.get(name) or getattr(losses, f"{name.split()[0]}_loss")
    if name == "topk of weights":
        labels = (torch.rand(2, N, N, generator=generator) < 0.3) & (x > -1e30)

    def called(x, weight, some):
        x, t = (each.clone().requires_grad_() for each in (x[some], x.new_ones(1)))
        given = dict(weight=weight, reduction=reduction)
        out = loss(x, labels[some], temperature=t, **given)
        own = loss(x, labels[some], **given)
        cotangent = torch.linspace(1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
        in_x, in_t = torch.autograd.grad(out, (x, t), cotangent, create_graph=True)
        (again,) = torch.autograd.grad(own, x, cotangent, create_graph=True)
        v = x.detach().nan_to_num(0, 1, 1).clamp(-1, 1)
        finite = again.nan_to_num(0)
        (second,) = torch.autograd.grad((finite * v).sum(), x, allow_unused=True)
        second = torch.zeros_like(x) if second is None else second.nan_to_num(0)
        return [each.detach() for each in (out, own, in_x, in_t, again, second)]

    # All, and those without a NaN.
    for some in (slice(None), (slice(None), [0, 1, 2, 3, 5, 6, 7, 8]), (0, [0, 3, 7])):
        if some == slice(None):
            wide = torch.where(x <= torch.finfo(x.dtype).min, -math.inf, x)
        truth = reference(called, wide.double(), weight.double(), some)
        for found, wanted in zip(called(x, weight, some), truth, strict=True):
            torch.testing.assert_close(
                found, wanted.to(found.dtype), rtol=1e-4, atol=1e-5, equal_nan=True
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [-1, 0])
@pytest.mark.parametrize(
    ("name", "margin"), [("am_softmax", 0.35), ("arcface", 0.5), ("arcface", 2)]
)
def test_margins(name, margin, dim, dtype, reference):
    """Cosines of ±1, beyond π − margin, masked, NaN; labels that do not count, or cannot be."""
    x = torch.randn(9, 9, generator=torch.Generator().manual_seed(0)).tanh().to(dtype)
    x[1, 2], x[2, 3], x[3], x[4, 4] = 1.0, -1.0, torch.finfo(dtype).min, math.nan
    x[5, 4], x[6, 2], x[0, 0] = -0.99, -math.inf, 1 + 1e-6
    x[8, 1] = 0.3
    labels = LABELS[0].clone()
    labels[7] = -100

    def called(x):
        x = (x if dim == -1 else x.T).clone().requires_grad_()
        how = dict(margin=margin, reduction="sum", temperature=0.3, dim=dim)
        loss, logits = getattr(losses, name)(x, labels, **how)
        rows = logits if dim == -1 else logits.T
        known = [0, 1, 2, 5, 6, 7, 8]
        finite = rows[known].double().masked_fill(rows[known].isinf(), 0.0)
        some = getattr(losses, name)(x[known] if dim == -1 else x[:, known], labels[known], **how)[
            0
        ]
        (first,) = torch.autograd.grad(some + finite.cos().sum(), x, create_graph=True)
        first = first if dim == -1 else first.T
        (second,) = torch.autograd.grad((first[known] * torch.arange(9.0)).sum(), x)
        second = second if dim == -1 else second.T
        return loss.detach(), logits.detach(), first.detach()[known], second[known]

    wide = torch.where(x <= torch.finfo(dtype).min, -math.inf, x).double()
    close = dict(rtol=1e-4, atol=1e-4) if dtype == torch.float32 else dict(rtol=0.02, atol=0.1)
    for found, wanted in zip(called(x), reference(called, wide), strict=True):
        torch.testing.assert_close(found, wanted.to(found.dtype), equal_nan=True, **close)
    bad = x.detach()[[0]].requires_grad_()
    assert getattr(losses, name)(bad, torch.tensor([9]))[0].isnan()


def test_a_label_out_of_range_is_nan():
    x = torch.zeros(3, 4, requires_grad=True)
    for loss in (losses.softmax_loss, losses.entmax_loss):
        found = loss(x, torch.tensor([0, 4, -1]), reduction="none")
        assert found.isnan().tolist() == [False, True, True]
        assert loss(x, torch.tensor([0, 4, -1]), ignore_index=4).isnan()
        assert loss(x, torch.tensor([-100] * 3)).item() == 0


def test_a_learned_alpha(reference):
    def loss(x, alpha, **how):
        return losses.entmax_loss(x, LABELS[0], alpha=alpha, **how)

    compared(loss, reference, rows()[0], torch.full((N,), 1.7))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_losses_and_halves_keep_their_digits(dtype, reference):
    x = torch.tensor([[20.0, 0.0, -3.0, 1.0], [3.0, 3.0, -1.0, 0.5]])
    target = torch.tensor([0, 1])
    for name in ("softmax", "entmax", "accuracy"):
        loss = getattr(losses, f"{name}_loss")
        wanted = reference(loss, x.double(), target, reduction="none")
        for given in (x, x.to(dtype)):
            found = loss(given, target, reduction="none")
            close = 1e-5 if found.dtype == torch.float32 else 1e-2
            torch.testing.assert_close(found.double(), wanted, rtol=close, atol=0)


@pytest.mark.parametrize("k", [1.0, 2.5, 9.0])
@pytest.mark.parametrize("link", LINKS)
def test_logarithms(link, k, reference):
    if link == "exponential" and k > 1:
        pytest.skip("what is capped is at an end of a plateau, which is not one number")

    def logs(x, reduction, temperature):
        found = kofn.log_soft_topk(x, k, link=link, temperature=temperature)
        return torch.where(found.isinf(), 0.0, found).cumsum(-1)[:, -1]

    compared(logs, reference, rows()[0], rtol=1e-4)  # F′/F has no bound next to 0


def test_logarithms_of_a_learned_alpha(reference):
    def logs(x, alpha, reduction, temperature):
        found = kofn.log_entmax(x, alpha, temperature=temperature)
        return torch.where(found.isinf(), 0.0, found).sum(-1)

    compared(logs, reference, rows()[0], torch.full((N,), 1.7))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
def test_the_one_label_that_is_left_costs_nothing(name, n):
    x = torch.full((2, n), -math.inf)
    x[:, n // 2] = torch.tensor([0.5, -1e30])
    x.requires_grad_()
    loss = getattr(losses, f"{name}_loss")(x, torch.tensor([n // 2] * 2))
    assert loss.item() == 0
    assert torch.autograd.grad(loss, x)[0].tolist() == [[0.0] * n] * 2


@pytest.mark.parametrize("link", LINKS)
def test_a_temperature_far_below_the_scores(link, reference):
    """θ lies a part of T from the scores; its two floats say how much, their sum in float64 not."""
    x = torch.tensor([[1e9, 1e9, 1e9, 0.0, 1.0], [-3e9, 5e10, 5e10, 5e10, 7.0]])
    temperature = torch.full((2,), 1e-6)
    target = torch.tensor([[1, 0, 0, 0, 0], [0, 0, 0, 1, 0]]).bool()
    functions = (
        lambda x, t: losses.fenchel_young_loss(x, target, link=link, temperature=t),
        lambda x, t: kofn.log_soft_topk(x, 1, link=link, temperature=t).amax(-1),
        lambda x, t: kofn.soft_topk_sum(x, 1, link=link, temperature=t),
        lambda x, t: kofn.soft_topk_threshold(x, 1, link=link, temperature=t),
    )

    def called(function, *given):
        given = [each.clone().requires_grad_() for each in given]
        out = function(*given)
        in_x, in_t = torch.autograd.grad(out.sum(), given)
        # Where 0 is the answer, what is left of Σ(p − t)z is divided by T.
        return out.detach(), in_x, in_t * (in_t.abs().max() > 1e3)

    for function in functions:
        truth = reference(called, function, x.double(), temperature.double())
        for found, wanted in zip(called(function, x, temperature), truth, strict=True):
            torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-6)


def test_a_label_far_below_the_others():
    x = torch.tensor([[0.0, 1e20, 1e20]], requires_grad=True)
    (in_x,) = torch.autograd.grad(losses.softmax_loss(x, torch.tensor([0])), x)
    assert in_x.tolist() == [[-1.0, 0.5, 0.5]]


@pytest.mark.parametrize("k", [1.0, 3.0])
@pytest.mark.parametrize("link", ["logistic", "linear"])
def test_sums_leave_the_least_numbers_out(link, k):
    """As additive masks of finfo.min do, with all of the others taken, too."""
    least = torch.finfo(torch.float32).min
    x = torch.tensor([[1.0, least, 1.0, least, 1.0]], requires_grad=True)
    value = kofn.soft_topk_sum(x, k, link=link)
    plain = kofn.soft_topk_sum(torch.ones(1, 3), k, link=link)
    torch.testing.assert_close(value.detach(), plain)
    (in_x,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(in_x, torch.tensor([[1.0, 0.0, 1.0, 0.0, 1.0]]) * k / 3)


@pytest.mark.parametrize("k", [1, 2])
def test_a_clear_winner_keeps_its_slope(k, reference):
    """θ rounded to float32 may leave the least that is chosen beyond the end, where F′ is 0."""
    # The last row's θ and the distance to it are both some roundings off at T = 0.7.
    sizes = torch.cat([torch.linspace(0.9, 1, 9), torch.tensor([0.9124999642372131])])
    x = 40 * torch.arange(6.0).repeat(10, 1) * sizes[:, None]
    cotangent = torch.arange(1.0, 7.0)
    for t in (0.3, 0.7, 1.1, 3e-3):

        def in_x(x, t=t):
            x = x.clone().requires_grad_()
            logs = kofn.log_soft_topk(x, k, link="exponential", temperature=t)
            return torch.autograd.grad((cotangent * logs).sum(), x)[0].float()

        torch.testing.assert_close(in_x(x), reference(in_x, x.double()), rtol=1e-5, atol=1e-6)
