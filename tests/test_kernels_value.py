"""S_k from the fused rows: what the reference makes of it in float64, slopes included."""

import numpy as np
import pytest
import torch

import kofn
from kofn import links
from support import LINKS

EVERY = [*(links.TABLE[name] for name in LINKS), links.entmax(1.3)]
INF, NAN = float("inf"), float("nan")


def rows(rng):
    """Six rows of 300 with what can go wrong: scores of ±inf, a NaN, a wholly masked row.

    A k between whole numbers: at one, a bounded link leaves θ open, and S_k has a kink there.
    """
    x = rng.standard_normal((6, 300)) * 3
    x[1, 3], x[2, 5], x[3, 7], x[4] = INF, -INF, NAN, -INF
    return x, np.array([5.5, 7.5, 290.5, 3.0, 0.0, 300.0]), np.array([0.5, 1, 2, 1, 1, 0.3])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("link", EVERY, ids=str)
def test_the_value_and_its_slopes_meet_the_reference(link, dtype, rng, monkeypatch):
    arrays = [a.astype(dtype) for a in rows(rng)]

    def value(x, k, t):
        return kofn.soft_topk_sum(x, k, link=link, temperature=t)

    got = [value(*arrays), value(*map(torch.tensor, arrays)).numpy()]
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    cotangent = torch.tensor(rng.standard_normal(6).astype(dtype))
    answer = value(*leaves)
    assert "_Value" in type(answer.grad_fn).__name__
    slopes = torch.autograd.grad(answer, leaves, cotangent)

    monkeypatch.setenv("KOFN_KERNELS", "reference")
    exact = [a.detach().double().requires_grad_() for a in leaves]
    reference = value(*exact)
    wanted = torch.autograd.grad(reference, exact, cotangent.double())
    size = np.abs(np.nan_to_num(arrays[0], posinf=0, neginf=0)).sum(-1)
    limit = (2e-7 if dtype == "float32" else 1e-15) * size
    expected = reference.detach().numpy()
    known = np.isfinite(expected)
    for ours in (*got, answer.detach().numpy()):
        assert np.array_equal(np.isfinite(ours), known)
        assert np.array_equal(ours == INF, expected == INF)
        assert np.all(np.abs(ours[known] - expected[known]) <= limit[known])
    for ours, right in zip(slopes, wanted, strict=True):
        good = [0, 1, 2, 4, 5]  # row 3 has the NaN
        error = torch.linalg.vector_norm((ours - right)[good])
        assert error <= (1e-5 if dtype == "float32" else 1e-12) * torch.linalg.vector_norm(
            right[good]
        )


@pytest.mark.parametrize("link", EVERY, ids=str)
def test_the_value_has_a_second_derivative_through_the_kernels(link, rng):
    x = torch.tensor(rng.standard_normal((2, 7)), requires_grad=True)
    k = torch.tensor([2.5, 3.1], dtype=torch.float64, requires_grad=True)

    def value(x, k):
        return kofn.soft_topk_sum(x, k, link=link)

    assert torch.autograd.gradcheck(value, (x, k))
    assert torch.autograd.gradgradcheck(value, (x, k))
