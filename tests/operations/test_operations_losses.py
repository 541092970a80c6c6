"""Losses on eager tensors keep p − t alone, and have derivatives of any order."""

import gc
import weakref

import pytest
import torch

from kofn import losses
from pairs import pairwise
from support import LINKS

pytestmark = pytest.mark.usefixtures("kernels_on")  # array code keeps what its steps need

B, N = 6, 9
LABELS = torch.arange(B) % N
HOT = torch.zeros(B, N).scatter_(-1, torch.stack([LABELS, (LABELS + 2) % N], -1), 1.0)
SOFT = torch.softmax(torch.linspace(-2, 2, B * N).reshape(B, N).sin(), -1)


def of(name, target=LABELS, **options):
    return lambda x, **more: getattr(losses, name)(
        x, target if target.ndim == 1 else target.to(x.dtype), reduction="none", **options, **more
    )


LOSSES = {
    "softmax": of("softmax_loss"),
    "smoothed": of("softmax_loss", label_smoothing=0.1),
    "sparsemax": of("sparsemax_loss"),
    "entmax": of("entmax_loss"),
    "entmax 1.05": of("entmax_loss", alpha=1.05),
    "entmax 1.3": of("entmax_loss", alpha=1.3, label_smoothing=0.1),
    "entmax 3": of("entmax_loss", alpha=3.0),
    "support": of("sparse_softmax_loss", k=4),
    "nucleus": of("sparse_softmax_loss", p=0.9),
    **{
        f"{kind} {link}": of("topk_loss", target, link=link)
        for kind, target in (("label", LABELS), ("hot", HOT), ("soft", SOFT))
        for link in LINKS
    },
}
BY_ARRAY_CODE = ("entmax 1.05", "entmax 3", "hot entmax", "soft entmax")
"""No kernel serves these α; and p = (p − 1) + 1 next to 0 has half of the digits of F′ = p^½."""
each = pytest.mark.parametrize("name", LOSSES)


def scores(spread=1.5, dtype=torch.float64):
    g = torch.Generator().manual_seed(4)
    return (torch.randn(B, N, generator=g, dtype=torch.float64) * spread).to(dtype)


def orders(function, x, upto=2):
    """The gradient and the products of the higher derivatives with fixed directions."""
    x, found = x.clone().requires_grad_(), []
    value = function(x)
    for order in range(upto):
        v = torch.cos(torch.arange(value.numel()) * (order + 1.0)).reshape(value.shape)
        more = order + 1 < upto
        (value,) = torch.autograd.grad((value * v.to(value.dtype)).sum(), x, create_graph=more)
        found.append(value.detach())
    return found


def by_array_code(function, x, upto=2):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KOFN_KERNELS", "reference")
        return orders(function, x.double(), upto)


def kept(function, x):
    sizes = {}

    def pack(tensor):
        sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(x)
    return sum(sizes.values()) / (x.numel() * x.element_size())


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in BY_ARRAY_CODE])
def test_what_losses_keep(name):
    """One number per entry, beside a target of weights and a few numbers per row."""
    x = scores(dtype=torch.float32).requires_grad_() * 1
    most = (2 if name.startswith(("hot", "soft ")) else 1) + 8 / N
    assert kept(LOSSES[name], x) <= most
    row = torch.full((B,), 0.7)
    assert kept(lambda x: LOSSES[name](x, temperature=row), x) <= most
    row = row.requires_grad_()
    assert kept(lambda x: LOSSES[name](x, temperature=row), x) > most


@pairwise(dtype=[torch.float32, torch.float64], spread=[1e-3, 1.5, 30.0, 1e3], name=LOSSES)
def test_second_derivatives_are_those_of_the_array_code(name, spread, dtype):
    x = scores(spread, dtype)
    x[1, 4:6], x[2] = -torch.inf, (x[2] / spread).round() * spread  # masks and ties
    eps = torch.finfo(dtype).eps
    for found, wanted in zip(orders(LOSSES[name], x), by_array_code(LOSSES[name], x), strict=True):
        # F′ is at most 1, and so are the directions: at most 4 sums of N products are rounded.
        torch.testing.assert_close(found.double(), wanted, rtol=64 * eps, atol=4 * N * eps)


@each
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(
    "fast_mode", [True, pytest.param(False, marks=pytest.mark.full)], ids=["directions", "tables"]
)
def test_numerical_second_and_third_derivatives(name, fast_mode, learned):
    """On random directions; the whole tables take seconds each."""
    x, t = scores().requires_grad_(), torch.linspace(0.6, 1.4, B).double()
    inputs = (x, t.requires_grad_()) if learned else (x,)

    def function(x, t=t):
        return LOSSES[name](x, temperature=t)

    assert torch.autograd.gradcheck(function, inputs, fast_mode=fast_mode)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=fast_mode)
    if not learned and name not in BY_ARRAY_CODE:
        v = torch.cos(torch.arange(B * N)).reshape(B, N).double()

        def second(x):
            (first,) = torch.autograd.grad(LOSSES[name](x).sum(), x, create_graph=True)
            return torch.autograd.grad((first * v).sum(), x, create_graph=True)[0]

        assert torch.autograd.gradcheck(second, (x,), fast_mode=fast_mode)


FAR = {
    "softmax": (of("softmax_loss"), 25.0),
    "exponential": (of("topk_loss", link="exponential"), 25.0),
    "entmax": (of("entmax_loss"), 0.705),
    "entmax 1.3": (of("entmax_loss", alpha=1.3), 1.71),
}


@pytest.mark.parametrize("name", FAR)
def test_a_label_far_below_has_an_accurate_slope(name):
    """p − 1 has no digits of a small p; entmax's F′ = p^(2 − α) would lose half of them."""
    function, far = FAR[name]
    at = LABELS[:, None]
    x = torch.zeros(B, N).scatter_(-1, at, -far)
    found, wanted = (by(function, x)[1].gather(-1, at).double() for by in (orders, by_array_code))
    assert (wanted != 0).all()
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", ["softmax", "exponential"])
def test_a_weight_that_is_rounded_to_1_has_the_slope_below(name):
    function, x = FAR[name][0], torch.linspace(-1, 1, N).repeat(B, 1)
    x = x.scatter(-1, LABELS[:, None] + 3, 24.0)
    found, wanted = (by(function, x)[1].double() for by in (orders, by_array_code))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=0)


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_second_derivatives_in_half_precision(name, dtype):
    x = scores(dtype=dtype)
    first, second = orders(LOSSES[name], x)
    assert first.dtype == second.dtype == dtype
    for found, wanted in zip((first, second), by_array_code(LOSSES[name], x), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=4 * torch.finfo(dtype).eps)


@each
def test_hard_rows_have_the_second_derivatives_of_the_array_code(name):
    x = scores()
    x[0, 3], x[1, 1], x[2, 2] = torch.nan, torch.inf, -torch.inf  # 1 and 2 at labels
    x[3, 0], x[4], x[5, 6] = torch.inf, -torch.inf, torch.finfo(x.dtype).min
    for found, wanted in zip(orders(LOSSES[name], x), by_array_code(LOSSES[name], x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12, equal_nan=True)


def test_nothing_holds_the_scores_or_what_is_kept():
    class Kept:
        def __init__(self, tensor):
            self.tensor = tensor

    x, seen = scores().requires_grad_(), weakref.WeakSet()

    def pack(tensor):
        held = Kept(tensor.detach())  # itself, as an answer, would hold the graph
        seen.add(held)
        return held

    gc.collect()
    gc.disable()
    try:
        logits = x * 1
        alive = weakref.ref(logits)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
            loss = LOSSES["entmax"](logits).sum()
        del logits
        assert alive() is None
        assert len(seen) > 0
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        del loss, first
        assert len(seen) == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["softmax", "entmax", "hot logistic"])
def test_what_autograd_offers(name):
    """Graphs that are kept or spent, hooks, checkpoints, batches of cotangents, changed scores."""
    function, x = LOSSES[name], scores().requires_grad_()
    first, second = orders(function, x.detach())
    v = torch.cos(torch.arange(B)).double()

    def value(x):
        return (function(x) * v).sum()

    loss = value(x)
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(loss, x, retain_graph=True)[0], first)
    torch.autograd.grad(loss, x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, x)
    with torch.autograd.graph.save_on_cpu():
        torch.testing.assert_close(orders(function, x.detach())[1], second)
    again = torch.utils.checkpoint.checkpoint(value, x, use_reentrant=False)
    (found,) = torch.autograd.grad(again, x, create_graph=True)
    torch.testing.assert_close(found, first)
    rows = torch.autograd.functional.hessian(value, x.detach(), vectorize=True)
    w = torch.cos(torch.arange(B * N) * 2.0).double()
    torch.testing.assert_close((w @ rows.reshape(B * N, B * N)).reshape(B, N), second)
    logits = x * 1
    loss = value(logits)
    logits.detach().zero_()  # a learned temperature would need them
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], first)
