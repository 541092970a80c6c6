"""Second derivatives where a row's slopes are so small that the square of their sum underflows."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch

from kofn import log_soft_topk, soft_topk_threshold
from oracles import LOGS
from support import ENDLESS, INNER, TWO_TAILS, full_but

EXPONENTS = 3, 100, 140, 150, 168, 250, 290  # ΣF′ is about 10 to the minus of these
SMALLEST = 1e-200, 1e-160, 1e-3


def _scores(link: str) -> np.ndarray:
    """Two scores below one, apart so that ΣF′ is as small, for k = 1."""
    tail = torch.tensor([10.0**-e for e in EXPONENTS], dtype=torch.float64)
    apart = -2 * INNER[link].quantile(tail).numpy()
    return np.stack([apart, 0 * apart, 0 * apart - 0.02], -1)


class _Oracle:
    """log p of the second entry in mpmath, by Newton's method from θ at k = 1."""

    def __init__(self, link: str, x: np.ndarray) -> None:
        self.logs, self.x = LOGS[link], [mpmath.mpf(float(v)) for v in x]

        def balance(theta: mpmath.mpf) -> mpmath.mpf:
            low = mpmath.fsum(mpmath.exp(self.logs.cdf(v - theta)) for v in self.x[1:])
            return mpmath.log(low) - self.logs.sf(self.x[0] - theta)

        with mpmath.workdps(40):
            self.theta = mpmath.findroot(balance, (self.x[0] / 2.1, self.x[0] / 1.9))
        self.slope = mpmath.fsum(mpmath.exp(self.logs.pdf(v - self.theta)) for v in self.x)

    def __call__(self, moved: tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]) -> mpmath.mpf:
        """The logarithm with changes of the second score, of k (in units of ΣF′) and of T."""
        theta, t = self.theta, 1 + moved[2]
        for _ in range(5):
            z = [(v + (moved[0] if i == 1 else 0) - theta) / t for i, v in enumerate(self.x)]
            low = mpmath.fsum(mpmath.exp(self.logs.cdf(v)) for v in z[1:])
            excess = low - mpmath.exp(self.logs.sf(z[0])) - moved[1] * self.slope
            slope = mpmath.fsum(mpmath.exp(self.logs.pdf(v)) for v in z)
            theta = theta + t * excess / slope
        return self.logs.cdf((self.x[1] + moved[0] - theta) / t)

    def mixed(self, i: int, j: int) -> float:
        """The difference in two of them, times ΣF′ per change of k."""
        step, total = mpmath.mpf(10) ** -8, 0
        for signs in itertools.product((1, -1), repeat=2):
            moved = [mpmath.mpf(0)] * 3
            for which, sign in zip((i, j), signs, strict=True):
                moved[which] += sign * step
            total += signs[0] * signs[1] * self(tuple(moved))
        return float(total / (4 * step**2))


def _wanted(link: str, x: np.ndarray) -> tuple[np.ndarray, float]:
    """The second derivatives in the second score, k and T, those in k times ΣF′; and ΣF′."""
    with mpmath.workdps(50):
        oracle = _Oracle(link, x)
        return np.array([[oracle.mixed(i, j) for j in range(3)] for i in range(3)]), oracle.slope


def _check(got: np.ndarray, link: str, x: np.ndarray) -> None:
    """The order is that of the indices; ∂²/∂k² is beyond the dtype where ΣF′ is below 1e−154."""
    wanted, weight = _wanted(link, x)
    for i, j in itertools.product(range(3), repeat=2):
        scaled = float(mpmath.mpf(float(got[i, j])) * weight ** ((i == 1) + (j == 1)))
        if i == j == 1 and not math.isfinite(got[i, j]):
            assert weight < 1e-146
        else:
            size = np.abs(wanted).max()
            assert scaled == pytest.approx(wanted[i, j], rel=1e-8, abs=1e-9 * size), (i, j)


@pytest.mark.parametrize("link", TWO_TAILS)
def test_torch_has_second_derivatives_in_every_order(link):
    for each in _scores(link):
        x, k, t = (
            torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (each, 1.0, 1.0)
        )
        low = log_soft_topk(x, k, link=link, temperature=t)[1]
        first = torch.autograd.grad(low, (x, k, t), create_graph=True)
        rows = []
        for part in (first[0][1], *first[1:]):
            second = torch.autograd.grad(part, (x, k, t), retain_graph=True)
            rows.append([second[0][1].item(), *(v.item() for v in second[1:])])
        _check(np.array(rows), link, each)


@pytest.mark.full
@pytest.mark.parametrize("link", full_but(TWO_TAILS[-1:], TWO_TAILS))
def test_jax_has_second_derivatives_in_every_order(link):
    jax = pytest.importorskip("jax")

    def low(moved, x):
        x = x + jax.numpy.array([0.0, 1.0, 0.0]) * moved[0]
        return log_soft_topk(x, moved[1], link=link, temperature=moved[2])[1]

    scores = _scores(link)
    with jax.enable_x64(True):
        at = jax.numpy.array([0.0, 1.0, 1.0])
        one = jax.jit(jax.jacrev(jax.grad(low)))
        found = [np.asarray(one(at, jax.numpy.asarray(x))) for x in scores]
    for got, x in zip(found, scores, strict=True):
        _check(got, link, x)


@pytest.mark.parametrize("link", ENDLESS)
def test_a_k_next_to_0_has_second_derivatives(link):
    """log p tends to log k + log-softmax of log F; θ to −T log k, for tails of e^z."""
    for k in SMALLEST:
        x = torch.tensor([0.2, 0.0, -0.1], dtype=torch.float64, requires_grad=True)
        k = torch.tensor(k, dtype=torch.float64, requires_grad=True)
        for function in (log_soft_topk, soft_topk_threshold):
            found = function(x, k, link=link).flatten()[-1]
            in_x, in_k = torch.autograd.grad(found, (x, k), create_graph=True)
            (one,) = torch.autograd.grad(in_x.sum() + in_x[0], k, retain_graph=True)
            (other,) = torch.autograd.grad(in_k, x)
            assert (other.sum() + other[0]).item() == pytest.approx(
                one.item(), rel=1e-9, abs=1e-12 / k.item()
            )


def test_a_row_with_tiny_slopes_changes_no_bit_of_the_others():
    steep = torch.tensor([60.0, 0.0, -0.02], dtype=torch.float64)
    other = torch.tensor([0.3, 0.1, -0.7], dtype=torch.float64)

    def second(*rows: torch.Tensor) -> torch.Tensor:
        x = torch.stack(rows).requires_grad_()
        k, t = (torch.ones(len(rows), dtype=torch.float64, requires_grad=True) for _ in "kt")
        found = log_soft_topk(x, k, link="normal", temperature=t)[-1, 1]
        firsts = torch.autograd.grad(found, (x, k, t), create_graph=True)
        seconds = [torch.autograd.grad(v[-1].sum(), (x, k, t), retain_graph=True) for v in firsts]
        return torch.stack([torch.hstack([v[-1].flatten() for v in each]) for each in seconds])

    assert torch.equal(second(other), second(steep, other))
