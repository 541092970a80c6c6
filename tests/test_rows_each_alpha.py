"""`entmax` with an alpha per row: a kernel for each alpha, and the derivative in alpha."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kofn
from kofn import links
from kofn.operations import each_alpha
from rows_of_users import draw, hold

INF, NAN = float("inf"), float("nan")
ALPHAS = torch.tensor([1.0, 1.25, 1.5, 1.7, 2.0], dtype=torch.float64)

pytestmark = pytest.mark.usefixtures("kernels_on")


def of(x, alpha, k=1, temperature=1.0, **more):
    return kofn.soft_topk(x, k, link=links.entmax(alpha), temperature=temperature, **more)


@pytest.fixture
def served(monkeypatch):
    """Whether kernels served all alphas, each time that this was asked first."""
    found, original = [], each_alpha.alphas_of

    def noted(*arguments):
        answer = original(*arguments)
        found.append(answer is not None)
        return answer

    monkeypatch.setattr(each_alpha, "alphas_of", noted)
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
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    for one, other in zip(got, gradients(), strict=True):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-12)
    assert served[0]
    assert not served[-1]


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
    assert gradgradcheck(of, (x, alpha), eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("alpha", [1.0, 1 + 1e-9, 1.001, 1.2, 1.5, 2.0])
def test_the_derivative_in_alpha_is_the_oracle(alpha, rng):
    """p and the formula in 50 digits against finite differences there."""
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
    got = each_alpha.in_alpha_of(p.expand(5, 5), torch.eye(5).double(), alphas)
    assert np.allclose(got, wanted, rtol=1e-7, atol=1e-9)


def test_rows_that_choose_all_or_nothing_or_have_a_nan():
    x = torch.tensor([[1.0, 2, 3], [1, NAN, 3], [-INF, -INF, -INF], [1, 2, 3], [1, INF, 3]])
    k = torch.tensor([3.0, 1, 1, 0, 1])
    alpha = torch.full((5,), 1.4, requires_grad=True)
    p = of(x, alpha, k)
    assert torch.equal(p[[0, 2, 3, 4]], torch.tensor([[1.0] * 3, [0] * 3, [0] * 3, [0, 1, 0]]))
    assert p[1].isnan().all()
    (slope,) = torch.autograd.grad(p[[0, 2, 3, 4]].sum(), alpha)
    assert torch.equal(slope[[0, 2, 3, 4]], torch.zeros(4))


@pytest.mark.parametrize(
    "alpha", [[1.1, 1.5], [1.5, 3.0], [1.5, NAN], np.linspace(1.2, 1.9, each_alpha.MOST + 1)]
)
def test_other_alphas_and_too_many_of_them_are_left_to_the_reference(alpha, rng, served):
    alpha = torch.tensor(np.asarray(alpha))
    p = of(torch.tensor(rng.standard_normal((len(alpha), 6))), alpha, 2)
    assert torch.allclose(p.sum(-1)[alpha == alpha], torch.tensor(2.0).double())
    assert p[alpha != alpha].isnan().all()
    assert served == [False]


@pytest.mark.parametrize("alpha", [1.2, 1.33, 1.5, 1.9, 2.0])
def test_the_laws_hold(alpha, rng):
    hold(draw(rng, 500, 9, "float32"), alpha, "torch", learned=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logarithms_and_their_gradients_meet_the_reference(dtype, rng, monkeypatch):
    x = torch.tensor(rng.standard_normal((4, 5, 30)) * 2).to(dtype)
    x[0, :, 3], x[1, :, 4], x[2] = -INF, 300.0, 1.0  # an underflow, ties
    t = torch.tensor(rng.uniform(0.5, 2, (4, 5))).to(dtype)
    leaves = [x, ALPHAS.to(dtype).repeat(4, 1), t]
    back = torch.tensor(rng.standard_normal(x.shape)).to(dtype)
    called, original = [], each_alpha._of_logarithms
    monkeypatch.setattr(
        each_alpha, "_of_logarithms", lambda *all_of: called.append(1) or original(*all_of)
    )

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
    assert called == [1]


def test_logarithms_meet_finite_differences_twice_and_keep_a_nan_to_its_row(rng):
    x = torch.tensor(rng.standard_normal((3, 4)) / 2, requires_grad=True)
    alpha = torch.tensor([1.3, 1.3, 1.2], dtype=torch.float64, requires_grad=True)
    assert gradcheck(kofn.log_entmax, (x, alpha), eps=1e-7, atol=1e-6)
    assert gradgradcheck(kofn.log_entmax, (x, alpha), eps=1e-7, atol=1e-5)
    x = torch.tensor([[1.0, 2, 3], [1, NAN, 3], [1, INF, 3]])
    alpha = torch.full((3,), 1.2, requires_grad=True)
    p = kofn.log_entmax(x, alpha)
    (slope,) = torch.autograd.grad(p.nan_to_num(neginf=0).sum() + p[1].sum(), alpha)
    assert slope[1].isnan()
    assert slope[0].isfinite()
    assert slope[2] == 0
