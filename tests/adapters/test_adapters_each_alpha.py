"""`entmax` with an alpha per row: kernels that take one, and the derivative in alpha."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kofn
from kofn import links
from kofn.adapters.torch import each_alpha
from kofn.kernels.cpu.rows import launch
from kofn.links.alpha import in_alpha
from kofn.losses import entmax_loss, fenchel_young_loss, segment_topk_loss
from rows_of_users import draw, hold

INF, NAN = float("inf"), float("nan")
ALPHAS = torch.tensor([1.0, 1.25, 1.5, 1.7, 2.0], dtype=torch.float64)

pytestmark = pytest.mark.usefixtures("kernels_on")


def of(x, alpha, k=1, temperature=1.0, **more):
    return kofn.soft_topk(x, k, link=links.entmax(alpha), temperature=temperature, **more)


@pytest.fixture
def served(monkeypatch):
    """Whether kernels served the rows of each part that operations were dealt out in."""
    found, original = [], each_alpha.parts_of

    def noted(given):
        for part in original(given):
            found.append(part[2])
            yield part

    monkeypatch.setattr(each_alpha, "parts_of", noted)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("k", [1, 2.5])
def test_the_bits_are_those_of_each_alpha(dtype, k, rng, served):
    x = torch.tensor(rng.standard_normal((3, 5, 20)) * 3).to(dtype)
    x[0, :, 3], x[1, :, 4] = -INF, 1e4
    temperature = torch.tensor(rng.uniform(0.5, 2, (3, 5))).to(dtype)
    alpha = ALPHAS.to(dtype).expand(3, 5)
    got = of(x, alpha, k, temperature)
    for i, each in enumerate(alpha[0].tolist()):
        assert torch.equal(got[:, i], of(x[:, i], each, k, temperature[:, i])), each
    assert all(served)


@pytest.mark.parametrize("k", [1, 2.5, "per row"])
def test_gradients_meet_the_reference(k, rng, monkeypatch, served):
    x = torch.tensor(rng.standard_normal((4, 5, 30)) * 2)
    x[0, :, 3], x[1, :, 4] = -INF, 1e6
    k = torch.tensor(rng.uniform(1, 5, (4, 5))) if k == "per row" else k
    leaves = [x, ALPHAS.repeat(4, 1), torch.tensor(rng.uniform(0.5, 2, (4, 5)))]
    leaves += [k] if isinstance(k, torch.Tensor) else []
    back = torch.tensor(rng.standard_normal(x.shape))

    def gradients():
        each = [leaf.clone().requires_grad_() for leaf in leaves]
        p = of(each[0], each[1], each[3] if len(each) > 3 else k, each[2])
        return [p.detach(), *torch.autograd.grad(p, each, back)]

    got = gradients()
    assert served == [True] * 8  # four kinds of links, there and back
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    for one, other in zip(got, gradients(), strict=True):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-12)
    assert len(served) == 8


def test_hooks_and_freed_graphs_let_all_of_it_go(rng):
    """Scores, alphas and what is kept are where hooks on saved tensors put them."""
    x = torch.tensor(rng.standard_normal((5, 7)), requires_grad=True)
    alpha = ALPHAS.clone().requires_grad_()
    packed = []

    def pack(tensor):
        packed.append(tensor.data_ptr())
        return tensor.numpy(force=True).copy()

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.tensor):
        p = of(x * 1, alpha * 1)
    held = p.grad_fn.call
    assert len(packed) >= 4
    assert not any(isinstance(each, torch.Tensor) for each in held)
    assert not any(isinstance(each, torch.Tensor) for each in held.rows)
    assert isinstance(held.rows.link.alpha, float)


def test_gradients_meet_finite_differences_twice(rng):
    x = torch.tensor(rng.standard_normal((3, 4)), requires_grad=True)
    alpha = torch.tensor([1.3, 1.3, 1.6], dtype=torch.float64, requires_grad=True)
    assert gradcheck(of, (x, alpha), eps=1e-7, atol=1e-6)
    assert gradgradcheck(of, (x, alpha), eps=1e-7, atol=1e-5, fast_mode=True)


@pytest.mark.parametrize("alpha", [1.0, 1 + 1e-9, 1.001, 1.2, 1.5, 2.0])
def test_the_derivative_in_alpha_is_the_oracle(alpha, rng):
    """Kernels for short and long rows, array code next to 1, and the formula of the GPU's, against
    finite differences in 50 digits.
    """
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 50
    z = [mpmath.mpf(v) for v in rng.standard_normal(5)]

    def weights(alpha):
        a = alpha - 1
        if a == 0:
            raised = [mpmath.e**v for v in z]
            return [v / sum(raised) for v in raised]
        p = lambda t: [max(a * v - t, 0) ** (1 / a) for v in z]  # noqa: E731
        low, high = a * max(z) - 1, a * max(z)
        for _ in range(170):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(p(middle)) > 1 else (low, middle)
        return p(low)

    h = mpmath.mpf(10) ** -12
    alpha = mpmath.mpf(alpha)
    ahead, behind = weights(alpha + h), weights(alpha - h if alpha > 1 + h else alpha)
    width = 2 * h if alpha > 1 + h else h
    wanted = [float((one - other) / width) for one, other in zip(ahead, behind, strict=True)]
    p = torch.tensor([float(v) for v in weights(alpha)], dtype=torch.float64)
    alphas = torch.full((5,), float(alpha), dtype=torch.float64)
    got = in_alpha(p.expand(5, 5), torch.eye(5).double() * p, alphas)
    assert np.allclose(got, wanted, rtol=1e-7, atol=1e-9)
    for n in (5, 200):  # the others are out of play
        x = torch.full((5, n), -INF, dtype=torch.float64)
        x[:, :5] = torch.tensor([float(v) for v in z])
        leaf = alphas.clone().requires_grad_()
        (got,) = torch.autograd.grad(of(x, leaf), leaf, torch.eye(5, n).double())
        assert np.allclose(got, wanted, rtol=1e-7, atol=1e-9), n


def test_rows_that_choose_all_or_nothing_or_have_a_nan():
    x = torch.tensor([[1.0, 2, 3], [1, NAN, 3], [-INF, -INF, -INF], [1, 2, 3], [1, INF, 3]])
    k = torch.tensor([3.0, 1, 1, 0, 1])
    alpha = torch.full((5,), 1.4, requires_grad=True)
    p = of(x, alpha, k)
    assert torch.equal(p[[0, 2, 3, 4]], torch.tensor([[1.0] * 3, [0] * 3, [0] * 3, [0, 1, 0]]))
    assert p[1].isnan().all()
    (slope,) = torch.autograd.grad(p[[0, 2, 3, 4]].sum(), alpha)
    assert torch.equal(slope[[0, 2, 3, 4]], torch.zeros(4))


@pytest.mark.parametrize("alpha", [[1.1, 1.5], [1.5, 3.0], [1.5, NAN], [1.7, 0.5]])
def test_other_alphas_are_left_to_the_reference_in_their_rows(alpha, rng, served, monkeypatch):
    x = torch.tensor(rng.standard_normal((2, 6)), requires_grad=True)
    alpha = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    good = (alpha.detach() >= 1) & (alpha.detach() < INF)

    def gradients():
        p = of(x, alpha, 2)
        return [p.detach(), *torch.autograd.grad(p, (x, alpha), torch.eye(2, 6).double())]

    got = gradients()
    assert sorted(served) == [False, False, True, True]
    assert torch.allclose(got[0].sum(-1)[good], torch.tensor(2.0).double())
    assert got[0][~good].isnan().all()
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    for one, other in zip(got, gradients(), strict=True):
        assert torch.allclose(one[good], other[good], rtol=1e-10, atol=1e-12)


def test_as_many_alphas_as_rows_go_to_one_call(rng, served):
    alpha = torch.tensor(rng.uniform(1.2, 1.4, 500), requires_grad=True)
    of(torch.tensor(rng.standard_normal((500, 6))), alpha, 2).sum().backward()
    assert served == [True, True]


@pytest.mark.parametrize("learned", [True, False])
def test_the_derivative_in_alpha_is_taken_only_if_it_is_learned(learned, rng, monkeypatch):
    dealt, original = [], launch.deal

    def noted(*arguments, three=None, **more):
        dealt.append(three is not None)
        return original(*arguments, three=three, **more)

    monkeypatch.setattr(launch, "deal", noted)
    x = torch.tensor(rng.standard_normal((4, 6)), requires_grad=True)
    alpha = torch.full((4,), 1.3, dtype=torch.float64, requires_grad=learned)
    for function in (kofn.entmax, kofn.log_entmax):
        function(x, alpha).amax(-1).sum().backward()
    assert sum(dealt) == 2 * learned


ALL = torch.tensor([1.0, 1.2, 1.25, 1.5, 1.7, 1.999, 2.0], dtype=torch.float64)


@pytest.mark.parametrize("n", [*range(1, 20), 63, 64, 65, 127, 128, 129, 130, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_the_other_rows_and_their_alphas(dtype, n, rng):
    rows = 17
    alpha = ALL[torch.tensor(rng.integers(0, len(ALL), rows))].to(dtype)
    x = torch.tensor(rng.standard_normal((rows, n)) * rng.choice([0.1, 2, 30], (rows, 1))).to(dtype)
    k, t = (torch.tensor(rng.uniform(0.3, 1, rows)).to(dtype) * most for most in (n, 2))
    back = torch.tensor(rng.standard_normal((rows, n))).to(dtype)
    labels, soft = torch.tensor(rng.integers(0, n, rows)), back.softmax(-1)

    def answers(some):
        leaves = [each[some].clone().requires_grad_() for each in (x, alpha, k, t)]
        scores, alphas, number, temperature = leaves
        link, g = links.entmax(alphas), back[some]
        weights = kofn.soft_topk(scores, number, link=link, temperature=temperature)
        yield weights
        yield from torch.autograd.grad(weights, leaves, g)
        logarithms = kofn.log_soft_topk(scores, 1, link=link, temperature=temperature)
        yield logarithms
        finite = torch.where(logarithms > -INF, logarithms, 0.0)
        yield from torch.autograd.grad(finite, (scores, alphas, temperature), g)
        for target in (labels, soft):
            options = dict(link=link, temperature=temperature, reduction="none")
            loss = fenchel_young_loss(scores, target[some], **options)
            yield loss
            yield from torch.autograd.grad(loss, (scores, alphas, temperature), g[:, 0])

    together = list(answers(torch.arange(rows)))
    for r in range(rows):
        for place, (one, all_of) in enumerate(zip(answers([r]), together, strict=True)):
            assert torch.equal(one[0], all_of[r]), (place, r, float(alpha[r]))
    backwards = torch.arange(rows).flip(0)
    for place, (one, all_of) in enumerate(zip(answers(backwards), together, strict=True)):
        assert torch.equal(one.flip(0), all_of), place


@pytest.mark.parametrize("alpha", [1.2, 1.33, 1.5, 1.9, 2.0])
def test_the_laws_hold(alpha, rng):
    hold(draw(rng, 500, 9, "float32"), alpha, "torch", learned=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logarithms_and_their_gradients_meet_the_reference(dtype, rng, monkeypatch, served):
    x = torch.tensor(rng.standard_normal((4, 5, 30)) * 2).to(dtype)
    x[0, :, 3], x[1, :, 4], x[2] = -INF, 300.0, 1.0  # an underflow, ties
    t = torch.tensor(rng.uniform(0.5, 2, (4, 5))).to(dtype)
    leaves = [x, ALPHAS.to(dtype).repeat(4, 1), t]
    back = torch.tensor(rng.standard_normal(x.shape)).to(dtype)

    def gradients():
        scores, alpha, temperature = each = [leaf.clone().requires_grad_() for leaf in leaves]
        found = kofn.log_entmax(scores, alpha, temperature=temperature)
        zero = found == -INF
        loss = torch.where(zero, 0.0, found) * back
        return [zero, found.detach(), *torch.autograd.grad(loss.sum(), each)]

    got = gradients()
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    near = {torch.float32: (2e-4, 2e-4), torch.float64: (1e-10, 1e-10)}[dtype]
    for one, other in zip(got, gradients(), strict=True):
        assert torch.allclose(one.double(), other.double(), *near)
    assert served == [True] * 8


def test_logarithms_meet_finite_differences_twice_and_keep_a_nan_to_its_row(rng):
    x = torch.tensor(rng.standard_normal((3, 4)) / 2, requires_grad=True)
    alpha = torch.tensor([1.3, 1.3, 1.2], dtype=torch.float64, requires_grad=True)
    assert gradcheck(kofn.log_entmax, (x, alpha), eps=1e-7, atol=1e-6)
    assert gradgradcheck(kofn.log_entmax, (x, alpha), eps=1e-7, atol=1e-5, fast_mode=True)
    x = torch.tensor([[1.0, 2, 3], [1, NAN, 3], [1, INF, 3]])
    alpha = torch.full((3,), 1.2, requires_grad=True)
    p = kofn.log_entmax(x, alpha)
    (slope,) = torch.autograd.grad(p.nan_to_num(neginf=0).sum() + p[1].sum(), alpha)
    assert slope[1].isnan()
    assert slope[0].isfinite()
    assert slope[2] == 0


TARGETS = ("labels", "several", "soft")


def losses_of(x, alpha, temperature, target):
    options = dict(link=links.entmax(alpha), temperature=temperature, reduction="none")
    return fenchel_young_loss(x, target, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [7, 300])
def test_losses_and_their_gradients_meet_the_reference(n, target, dtype, rng, monkeypatch, served):
    x = torch.tensor(rng.standard_normal((4, 5, n)) * 2)
    x[0, :, 3], x[1, :, 4], x[2] = -INF, 30.0, 1.0
    target = {
        "labels": torch.tensor(rng.integers(0, 3, (4, 5))),
        "several": torch.arange(n).expand(4, 5, n) < torch.tensor([[1], [2], [3], [0]])[..., None],
        "soft": torch.tensor(rng.standard_normal((4, 5, n))).to(dtype).masked_fill(x == -INF, -INF),
    }[target]
    target = target.softmax(-1) if target.is_floating_point() else target
    t = torch.tensor(rng.uniform(0.5, 2, (4, 5)))
    leaves = [each.to(dtype) for each in (x, ALPHAS.repeat(4, 1), t)]
    back = torch.tensor(rng.standard_normal((4, 5))).to(dtype)

    def gradients():
        each = [leaf.clone().requires_grad_() for leaf in leaves]
        loss = losses_of(*each, target)
        return [loss.detach(), *torch.autograd.grad(loss, each, back)]

    got = gradients()
    assert served == [True] * 4
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    near = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-10, 1e-12)}[dtype]
    for one, other in zip(got, gradients(), strict=True):
        assert torch.allclose(one, other, *near)


@pytest.mark.parametrize("target", ["labels", "soft"])
def test_losses_meet_finite_differences_twice(target, rng):
    x = torch.tensor(rng.standard_normal((4, 4)), requires_grad=True)
    # The last is left to the reference, with all its derivatives.
    alpha = torch.tensor([1.3, 1.5, 1.6, 1.1], dtype=torch.float64, requires_grad=True)
    t = torch.tensor(rng.uniform(0.5, 2, 4), requires_grad=True)
    labels = torch.tensor([0, 1, 3, 2])
    target = labels if target == "labels" else torch.tensor(rng.dirichlet(np.ones(4), 4))
    of_rows = lambda *leaves: losses_of(*leaves, target)  # noqa: E731
    assert gradcheck(of_rows, (x, alpha, t), eps=1e-7, atol=1e-6)
    assert gradgradcheck(of_rows, (x, alpha, t), eps=1e-7, atol=1e-5, fast_mode=True)


def test_losses_without_a_search_and_those_that_kernels_give_up_on():
    x = torch.tensor([[1.0, 2, 3], [1, NAN, 3], [-INF, -INF, -INF], [1, INF, 3], [-3e38, 3e38, 1]])
    alpha = torch.tensor([1.3, 1.4, 1.6, 1.7, 1.8], requires_grad=True)
    target = torch.tensor([[0.5, 0.5, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0]])
    loss = losses_of(x, alpha, 1.0, target)
    (slope,) = torch.autograd.grad(loss.sum(), alpha)
    numbers = alpha.tolist()
    wanted = [losses_of(x[i], numbers[i], 1.0, target[i]) for i in range(5)]
    assert torch.equal(loss.nan_to_num(nan=7), torch.stack(wanted).nan_to_num(nan=7))
    assert slope[1].isnan()
    assert torch.equal(slope[2:], torch.zeros(3))


def test_labels_that_are_smoothed_and_segments(rng, monkeypatch, served):
    x = torch.tensor(rng.standard_normal((3, 6)))
    flat, ids = x.reshape(-1), torch.arange(3).repeat_interleave(6)
    marks = (torch.arange(18) % 6 == 2).double()

    def gradients():
        scores, alpha = flat.clone().requires_grad_(), torch.tensor([1.3, 1.5, 1.7]).double()
        alpha.requires_grad_()
        labels = torch.tensor([1, 0, 5])
        options = dict(label_smoothing=0.1, reduction="none")
        smooth = entmax_loss(scores.reshape(3, 6), labels, alpha, **options)
        link = links.entmax(alpha)
        of_segments = segment_topk_loss(scores, marks, segment_ids=ids, link=link, reduction="none")
        loss = (smooth + of_segments) @ torch.arange(1.0, 4).double()
        return [smooth.detach(), of_segments.detach(), *torch.autograd.grad(loss, (scores, alpha))]

    got = gradients()
    assert served
    assert all(served)
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    for one, other in zip(got, gradients(), strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)
