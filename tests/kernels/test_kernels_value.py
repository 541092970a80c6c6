"""S_k from the kernels for rows: what the oracle and the reference make of it, slopes included."""

import numpy as np
import pytest
import torch

import kofn
import oracles
from kofn import links
from kofn.links import table
from kofn.losses import fenchel_young_loss
from support import LINKS, Framework, weight_tolerance

EVERY = [*(table.TABLE[name] for name in LINKS), links.entmax(1.3)]
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
    assert "_Recorded" in type(answer.grad_fn).__name__
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
    assert torch.autograd.gradgradcheck(value, (x, k), fast_mode=True)


BACKENDS = [
    *(pytest.param("kernels", link, id=f"kernels-{link}") for link in LINKS),
    *(pytest.param("reference", link, id=f"reference-{link}") for link in LINKS),
    *(pytest.param("jax", link, id=f"jax-{link}", marks=pytest.mark.full) for link in LINKS),
]


def far_rows(rng, dtype):
    """(x, k, T) with |x|/T from 0.1 to 10⁶, as the dtype holds them: the oracle's are the same."""
    x, scale, t = (
        rng.standard_normal((24, 12)),
        10.0 ** rng.uniform(-1, 6, (24, 1)),
        10.0 ** rng.uniform(-2, 2, 24),
    )
    x[::4] = np.round(3 * x[::4]) / 3
    k = rng.integers(1, 11, 24) + rng.choice([-0.25, 0.0, 0.5], 24)
    return [a.astype(dtype) for a in (x * scale * t[:, None], k, t)]


def slopes_of(framework, x, k, t, link):
    """(S_k, its cotangents) as NumPy arrays."""

    def value(x, k, t):
        return kofn.soft_topk_sum(x, k, link=link, temperature=t)

    given = [framework.array(a, a.dtype.name) for a in (x, k, t)]
    ones = framework.array(np.ones(len(k)), x.dtype.name)
    return [framework.numpy(value(*given)), *framework.vjp(value, tuple(given), ones)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("backend", "link"), BACKENDS)
def test_the_value_and_its_slopes_meet_the_oracle_far_from_the_threshold(
    backend, link, dtype, rng, monkeypatch
):
    """z beyond every exponent: 2^y of such a y is no number, and must not be computed."""
    if backend == "reference":
        monkeypatch.setenv("KOFN_KERNELS", "reference")
    x, k, t = far_rows(rng, dtype)
    framework = Framework("jax" if backend == "jax" else "torch")
    values, in_x, in_k, in_t = slopes_of(framework, x, k, t, link)
    eps = {"float32": 2.0**-23, "float64": 2.0**-52}[dtype]
    for i, (row, k_, t_) in enumerate(zip(x, k, t, strict=True)):
        value, p, theta, entropy = oracles.value(row, k_, t_, link)
        size = float(np.abs(row).sum()) + float(t_)
        assert abs(values[i] - value) <= 4 * eps * size
        assert np.max(np.abs(in_x[i] - p)) <= weight_tolerance(row, t_, dtype)
        if k_ % 1:  # else θ may be anywhere between two scores
            assert abs(in_k[i] - theta) <= 4 * eps * size
            assert abs(in_t[i] - entropy) <= 1e3 * eps * (1 + size / t_ / 1e3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("link", LINKS)
def test_numpy_has_the_value_of_tensors(link, dtype, rng):
    x, k, t = far_rows(rng, dtype)
    ours = kofn.soft_topk_sum(x, k, link=link, temperature=t)
    assert np.array_equal(ours, slopes_of(Framework("torch"), x, k, t, link)[0])


@pytest.mark.parametrize(
    ("scores", "k", "link", "temperature", "value"),
    [
        (torch.tensor([0.0, 100.0]), 1, "exponential", 1.0, 100.0),
        (torch.tensor([2.0, 1.0, 0.5, -1.0]), 2, "logistic", 0.01, 3.0),
        (np.array([-1000.0, 0.0]), 1, "exponential", 1.0, 0.0),
        (torch.tensor([30.0, 0.0]), 1, "logistic", 0.1, 30.0),
    ],
)
def test_a_choice_that_is_certain_is_worth_its_scores(scores, k, link, temperature, value):
    got = kofn.soft_topk_sum(scores, k, link=link, temperature=temperature)
    assert float(got) == pytest.approx(value, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("backend", ["kernels", "reference"])
@pytest.mark.parametrize("link", LINKS)
def test_the_loss_is_what_the_value_says(link, backend, rng, monkeypatch):
    """(S_k − ⟨target, x⟩)/T, for a target of zeros and ones."""
    if backend == "reference":
        monkeypatch.setenv("KOFN_KERNELS", "reference")
    x, _, t = far_rows(rng, "float64")
    target = np.zeros(x.shape)
    target[:, 2:5] = 1
    loss = fenchel_young_loss(
        torch.tensor(x),
        torch.tensor(target),
        link=link,
        temperature=torch.tensor(t),
        reduction="none",
    ).numpy()
    for i, row in enumerate(x):
        value, _, _, _ = oracles.value(row, 3.0, t[i], link)
        size = float(np.abs(row).sum()) / t[i] + 1
        assert abs(loss[i] - (value - row[2:5].sum()) / t[i]) <= 1e-14 * size
