"""The articles' NumPy codes: oracles where they work, and a test of where each one fails.

The functions below are those codes as published, names included, so that what fails is theirs.
"""

import re
import warnings

import numpy as np
import pytest

import oracles
from kofn import (
    KSubset,
    entmax,
    perturbed_argmax,
    soft_topk,
    soft_topk_threshold,
    softmax,
    sparsemax,
)
from kofn.maps.perturbed import GUMBEL, NOISES
from places import ROOT

RNG = np.random.default_rng(0)


def article_grad_topk(x, k):
    for i in range(1, k + 1):
        log_zs = x if i == 1 else x + log_z + np.log(1 - np.exp(log_zs - log_z))  # noqa: F821
        log_z = np.logaddexp.reduce(log_zs) - np.log(i)
    return np.exp(log_zs - log_z)


def article_exponential(x, k):
    x_sort = np.sort(x)
    x_lamb = np.logaddexp.accumulate(x_sort)[-k:] - np.log(np.arange(k) + 1)
    x_sort_shift = np.pad(x_sort[-k:][1:], (0, 1), constant_values=np.inf)
    lamb = x_lamb[(x_lamb <= x_sort_shift) & (x_lamb >= x_sort[-k:])]
    return np.clip(np.exp(x - lamb), 0, 1)


def article_logistic(x, k, epsilon=1e-4):
    def sigmoid(x):
        y = np.exp(-np.abs(x))
        return np.where(x >= 0, 1, y) / (1 + y)

    def sigmoid_inv(x):
        return np.log(x / (1 - x))

    low = x.min() - sigmoid_inv(k / len(x))
    high = x.max() - sigmoid_inv(k / len(x))
    while high - low > epsilon:
        lamb = (low + high) / 2
        z = sigmoid(x - lamb).sum()
        low, high = (low, lamb) if z < k else (lamb, high)
    return sigmoid(x - lamb)


def article_laplace_candidates(x, k):
    x_sort = np.sort(x)
    lse1 = np.logaddexp.accumulate(x_sort)
    lse2 = np.pad(np.logaddexp.accumulate(-x_sort[::-1])[::-1], (0, 1), constant_values=-np.inf)[1:]
    m = np.arange(len(x) - 1, -1, -1)
    x_lamb = lse1 - np.log(np.sqrt((k - m) ** 2 + np.exp(lse1 + lse2)) + (k - m))
    x_sort_shift = np.pad(x_sort[1:], (0, 1), constant_values=np.inf)
    return x_lamb[(x_lamb <= x_sort_shift) & (x_lamb >= x_sort)]


def article_laplace(x, k):
    lamb = article_laplace_candidates(x, k)
    return (1 - np.exp(-np.abs(x - lamb))) * np.sign(x - lamb) * 0.5 + 0.5


def article_sparsemax(x):
    x_sort = np.sort(x)[::-1]
    x_lamb = (np.cumsum(x_sort) - 1) / np.arange(1, len(x) + 1)
    lamb = x_lamb[(x_sort >= x_lamb).argmin() - 1]
    return np.maximum(x - lamb, 0)


def article_entmax(x):
    x_sort = np.sort(x / 2)[::-1]
    k = np.arange(1, len(x) + 1)
    x_mu = np.cumsum(x_sort) / k
    x_sigma2 = np.cumsum(x_sort**2) / k - x_mu**2
    x_lamb = x_mu - np.sqrt(np.maximum(1.0 / k - x_sigma2, 0))
    x_sort_shift = np.pad(x_sort[1:], (0, 1), constant_values=-np.inf)
    lamb = x_lamb[(x_sort > x_lamb) & (x_lamb > x_sort_shift)]
    return np.maximum(x / 2 - lamb, 0) ** 2


def article_iterative(x, k):
    x = x - x.min()
    p = np.zeros_like(x)
    for _ in range(k):
        y = np.exp((1 - p) * x - ((1 - p) * x).max())
        p = p + y / y.sum()
    return p


def article_weighted(x, k):
    p = np.zeros_like(x)
    for _ in range(k):
        y = (1 - p) * np.exp(x - x.max())
        p = p + y / y.sum()
    return p


# --- where they work, they agree with kofn ---


@pytest.mark.parametrize(("n", "k"), [(8, 2), (100, 10), (30, 29)])
def test_the_exponential_code_is_an_oracle(n, k):
    x = RNG.standard_normal(n) * 2
    assert soft_topk(x, k, link="exponential") == pytest.approx(
        article_exponential(x, k), abs=1e-13
    )


@pytest.mark.parametrize(("n", "k"), [(8, 2), (100, 10)])
def test_the_logistic_code_is_an_oracle_to_its_epsilon(n, k):
    x = RNG.standard_normal(n)
    assert soft_topk(x, k) == pytest.approx(article_logistic(x, k), abs=1e-4)
    assert soft_topk(x, k) == pytest.approx(article_logistic(x, k, 1e-12), abs=1e-12)


@pytest.mark.parametrize(("n", "k"), [(8, 2), (100, 10)])
def test_the_laplace_code_is_an_oracle_for_small_k(n, k):
    x = RNG.standard_normal(n)
    with np.errstate(invalid="ignore"):
        expected = article_laplace(x, k)
    assert soft_topk(x, k, link="laplace") == pytest.approx(expected, abs=1e-12)


def test_the_sparsemax_and_entmax_codes_are_oracles():
    for _ in range(20):
        x = RNG.standard_normal(12) * 2
        assert sparsemax(x) == pytest.approx(article_sparsemax(x), abs=1e-13)
        assert entmax(x) == pytest.approx(article_entmax(x), abs=1e-12)


# --- and where each one fails ---


def test_laplace_at_k_1_is_softmax_only_while_no_weight_passes_one_half():
    wide = np.array([5.0, 0, 0])
    assert soft_topk(wide, 1, link="laplace") == pytest.approx([0.942, 0.029, 0.029], abs=5e-4)
    assert softmax(wide) == pytest.approx([0.987, 0.0067, 0.0067], abs=5e-4)
    flat = np.array([0.5, 0.2, 0.0])
    assert softmax(flat).max() < 0.5
    assert soft_topk(flat, 1, link="laplace") == pytest.approx(softmax(flat), abs=1e-14)


def test_the_laplace_code_finds_no_candidate_once_the_threshold_is_below_every_score():
    for _ in range(50):
        x = RNG.standard_normal(100) * 0.1
        with np.errstate(invalid="ignore"):
            assert len(article_laplace_candidates(x, 95)) == 0
        assert soft_topk(x, 95, link="laplace").sum() == pytest.approx(95)


def numbers_of_laplace_candidates(x, k):
    """How many candidates `article_laplace_candidates` finds in each row, all rows at once."""
    x = np.sort(x, axis=-1)
    infinite = np.full((len(x), 1), np.inf, x.dtype)
    low = np.logaddexp.accumulate(x, axis=-1)
    high = np.logaddexp.accumulate(-x[:, ::-1], axis=-1)[:, ::-1]
    high = np.concatenate([high[:, 1:], -infinite], axis=-1)
    m = np.arange(x.shape[-1] - 1, -1, -1)
    level = low - np.log(np.sqrt((k - m) ** 2 + np.exp(low + high)) + (k - m))
    following = np.concatenate([x[:, 1:], infinite], axis=-1)
    return ((level <= following) & (level >= x)).sum(-1)


def share_of_rows_that_fail(deviation, k, dtype=np.float64):
    rows = np.random.default_rng(0).standard_normal((4000, 100)) * deviation
    rows = rows.astype(dtype)
    with np.errstate(all="ignore"):
        found = numbers_of_laplace_candidates(rows, k)
        for x, number in zip(rows[:20], found[:20], strict=True):
            assert len(article_laplace_candidates(x, k)) == number
    return np.mean(found != 1)


def test_k_beyond_n_half_is_necessary_for_the_laplace_code_to_fail_and_not_enough():
    """The table of docs/errata.md."""
    page = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    head, _, *rows = re.findall(r"^\|(.*)\|$", page[page.index("| standard deviation |") :], re.M)
    ks = [int(k) for k in re.findall(r"\d+", head.split("float32")[0])]
    for row in rows:
        deviation, *shares, single = (float(v.strip(" %")) for v in row.split("|"))
        found = [share_of_rows_that_fail(deviation, k) for k in ks]
        found.append(share_of_rows_that_fail(deviation, 10, np.float32))
        assert [100 * v for v in found] == pytest.approx([*shares, single], abs=0.5)


def test_the_logistic_code_raises_at_equal_scores_and_at_k_of_n():
    with pytest.raises(UnboundLocalError):
        article_logistic(np.zeros(4), 2)
    with pytest.raises(ZeroDivisionError):
        article_logistic(np.arange(4.0), 4)


def test_entmax_may_take_the_largest_k_whose_score_reaches_its_level():
    """The article says that this is not equivalent to its own rule; it is (docs/errata.md)."""
    rng, n = np.random.default_rng(3), 12
    x = rng.standard_normal((2000, n)) * rng.choice([0.1, 0.3, 1.0, 3.0], size=(2000, 1))
    z, k = np.sort(x / 2)[:, ::-1], np.arange(1, n + 1)
    mean = np.cumsum(z, -1) / k
    level = mean - np.sqrt(np.maximum(1 / k - np.cumsum(z**2, -1) / k + mean**2, 0))
    below = np.pad(z[:, 1:], ((0, 0), (0, 1)), constant_values=-np.inf)
    theirs = (z >= level) & (level >= below)
    assert np.array_equal(theirs.argmax(-1), n - 1 - (z >= level)[:, ::-1].argmax(-1))


def test_the_sign_of_mu_in_the_conditions_of_entmax():
    """x + H′ − λ + μ = 0 with μ ≥ 0, H = (1 − Σp^1.5)/0.75; derivation 40 has −μ."""
    for _ in range(20):
        x = RNG.standard_normal(8) * 2
        p = entmax(x)
        h, entropy = 1e-6, lambda p: (1 - np.maximum(p, 0) ** 1.5) / 0.75
        slope = np.where(p > 2 * h, (entropy(p + h) - entropy(p - h)) / (2 * h), 0.0)
        assert slope == pytest.approx(-2 * np.sqrt(np.where(p > 2 * h, p, 0)), abs=1e-4)
        stationary = x - 2 * np.sqrt(p)
        level = stationary[p > 0].mean()
        assert stationary[p > 0] == pytest.approx(level, abs=1e-9)
        assert np.all(stationary[p == 0] - level <= 1e-9)


def test_the_stopped_gradient_of_lambda_is_right_once():
    import torch
    from torch.func import hessian, jacrev

    def by_hand(x):
        level = soft_topk_threshold(x, 2).detach()
        slope = torch.sigmoid(x - level) * torch.sigmoid(level - x)
        slope = (slope / slope.sum()).detach()
        level = x @ slope + (level - x @ slope).detach()
        return torch.sigmoid(x - level)

    def exact(x):
        return soft_topk(x, 2)

    x = torch.tensor([2.0, 1.0, 0.5, -1.0], dtype=torch.float64)
    assert torch.allclose(jacrev(by_hand)(x), jacrev(exact)(x), atol=1e-12)
    assert (hessian(by_hand)(x) - hessian(exact)(x)).abs().max() > 0.01


def test_clipped_links_give_equal_weights_to_different_scores():
    x = np.array([5.0, 4.0, 0.0, -1.0])
    for link, k in (("linear", 2), ("exponential", 3)):
        p = soft_topk(x, k, link=link)
        assert p[0] == p[1] == 1
    assert np.all(np.diff(soft_topk(x, 2)) < 0)


def test_the_sum_of_the_k_largest_is_the_minimum_and_not_the_argmin():
    x = RNG.standard_normal(9)
    levels = np.linspace(-4, 4, 8001)
    for k in (1, 3, 8):
        cost = np.maximum(x - levels[:, None], 0).sum(-1) + k * levels
        assert cost.min() == pytest.approx(np.sort(x)[-k:].sum(), abs=0.01)
        greatest = np.sort(x)[::-1]
        assert greatest[k] - 1e-3 <= levels[cost.argmin()] <= greatest[k - 1] + 1e-3


def test_adding_one_item_after_another_has_no_limit_that_subtraction_has():
    """Derivation 22 beside derivation 23: at the row where the recursion gives NaN."""
    x, k = np.random.default_rng(1).standard_normal(100) * 5, 50
    log_z = np.r_[0.0, np.full(k, -np.inf)]
    for item in x:
        log_z[1:] = np.logaddexp(log_z[1:], item + log_z[:-1])
    assert KSubset(x, k).log_partition() == pytest.approx(log_z[k], rel=1e-13)


def test_the_laplace_code_finds_two_candidates_at_ties():
    with np.errstate(invalid="ignore", divide="ignore"):
        assert len(article_laplace_candidates(np.zeros(4), 2)) == 2
    assert soft_topk(np.zeros(4), 2, link="laplace").tolist() == [0.5] * 4


def test_the_laplace_code_rounds_a_float32_away_at_wide_scores():
    lost = 0
    for _ in range(20):
        x = (RNG.standard_normal(100) * 1000).astype(np.float32)
        with np.errstate(all="ignore"):
            lost += len(article_laplace_candidates(x, 10)) != 1
        p = soft_topk(x, 10, link="laplace")
        expected = oracles.soft_topk(x, 10, 1.0, oracles.CDF["laplace"])
        assert np.max(np.abs(p - expected)) < 2e-4  # 6e-8·|x/T| beyond |x/T| = 30
    assert lost > 0


def test_the_recursion_for_subset_marginals_gives_nan():
    x = np.random.default_rng(1).standard_normal(100) * 5
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.all(np.isfinite(article_grad_topk(x, 3)))
        assert np.any(np.isnan(article_grad_topk(x, 50)))


def test_subset_marginals_are_not_soft_topk():
    """The recursion itself is exact algebra: right while it lasts, and another map."""
    import itertools

    x = np.array([1.0, 0.2, -0.5, 2.0, 0.0])
    subsets = list(itertools.combinations(range(5), 2))
    mass = np.array([np.exp(x[list(s)].sum()) for s in subsets])
    marginals = np.array([mass[[i in s for s in subsets]].sum() for i in range(5)]) / mass.sum()
    assert article_grad_topk(x, 2) == pytest.approx(marginals, abs=1e-12)
    assert np.max(np.abs(marginals - soft_topk(x, 2))) > 0.01


def test_iterative_soft_k_max_leaves_the_unit_interval_and_the_order():
    above, disordered = 0.0, 0
    rng = np.random.default_rng(0)
    for _ in range(500):
        x = rng.standard_normal(5) * 3
        p = article_iterative(x, 3)
        above = max(above, p.max())
        disordered += bool(np.any(np.diff(p[np.argsort(x)]) < -1e-12))
    assert above > 1.1
    assert disordered > 50


def test_the_weighted_iteration_tends_to_one_and_a_half():
    x = np.array([3.0, 2.0, 1.0, 0.0]) / 0.06
    assert article_weighted(x, 2) == pytest.approx([1.5, 0.5, 0, 0], abs=1e-6)
    assert soft_topk(2 * x, 2) == pytest.approx([1, 1, 0, 0], abs=1e-6)


def test_softmax_is_one_half_lipschitz():
    worst = 0.0
    for _ in range(200):
        p = softmax(RNG.standard_normal(4) * 3)
        worst = max(worst, np.linalg.norm(np.diag(p) - np.outer(p, p), 2))
    assert 0.4 < worst <= 0.5 + 1e-12
    half = np.array([0.5, 0.5])
    assert np.linalg.norm(np.diag(half) - np.outer(half, half), 2) == pytest.approx(0.5)


def test_sparsemax_at_k_1_is_sparsemax_and_not_softmax():
    x = np.array([1.0, 0.5, -1.0])
    assert soft_topk(x, 1, link="linear") == pytest.approx(sparsemax(x))
    assert np.max(np.abs(sparsemax(x) - softmax(x))) > 0.1


def test_bounded_links_are_exactly_hard_once_temperature_is_below_the_gap():
    x = np.array([3.0, 2.0, 1.5, 0.0])
    for temperature in (0.49, 0.1, 0.001):
        p = soft_topk(x, 2, link="linear", temperature=temperature)
        assert p.tolist() == [1, 1, 0, 0]
    assert soft_topk(x, 2, link="linear", temperature=0.6).tolist() != [1, 1, 0, 0]


def test_plain_newton_runs_away_where_the_solver_does_not():
    """Newton on Σσ(x − λ) = k from λ = 10: two steps to 1e301 and worse."""
    x = np.array([1.0, 0.5, -0.3, 0.2, -1.0])

    def step(value):
        s = 1 / (1 + np.exp(-(x - value)))
        return value + (s.sum() - 2) / (s * (1 - s)).sum()

    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        first = step(10.0)
        second = step(first)
    assert first < -1000
    assert not abs(second) < 1e100
    assert soft_topk(x, 2).sum() == pytest.approx(2)


def test_the_entmax_code_raises_at_a_boundary_and_the_exponential_one_at_ties():
    """The one for a strict inequality; the other's are weak, and rounding leaves two of four."""
    with pytest.raises(ValueError, match="broadcast"):
        article_entmax(np.array([2.0, 0.0, 0.0])[:2])
    assert entmax(np.array([2.0, 0.0])) == pytest.approx([1, 0], abs=1e-12)
    with pytest.raises(ValueError, match="broadcast"):
        article_exponential(np.ones(4), 4)
    assert soft_topk(np.ones(4), 4, link="exponential").tolist() == [1] * 4


def test_lambda_is_not_unique_for_a_clipped_link(kernels_on, reference):
    """Derivation 25 needs f to increase strictly, which clip(z, 0, 1) does not."""
    x = np.array([4.0, 3.0, 1.0, 0.0])
    for level in (1.2, 1.9):
        assert np.clip(x - level, 0, 1).tolist() == [1, 1, 0, 0]
    assert soft_topk(x, 2, link="linear").tolist() == [1, 1, 0, 0]
    assert soft_topk_threshold(x, 2, link="linear") - 0.5 == pytest.approx(1.5, abs=1e-6)
    # Any of the interval serves: without kernels, the search ends a little further from its middle.
    level = reference(soft_topk_threshold, x, 2, link="linear") - 0.5
    assert level == pytest.approx(1.5, abs=1e-5)


def test_the_z_of_the_kth_score_goes_to_0_for_the_exponential_link():
    """Derivation 27 has every z of the k largest go to infinity."""
    x = np.array([3.0, 2.0, 1.5, 0.0])
    for tau in (0.1, 0.03, 0.01, 0.001):
        level = soft_topk_threshold(x, 2, link="exponential", temperature=tau) / tau + 1
        assert abs(x[1] / tau - level) < 0.01
        assert abs(x[1] / tau - level) < 2 * np.exp(-0.5 / tau) + 1e-9
    logistic = soft_topk_threshold(x, 2, temperature=0.001)
    assert (x[1] - logistic) / 0.001 > 200


def test_the_hard_iteration_takes_the_first_twice_at_k_of_n():
    def hard(x, k):
        x = x - x.min()
        p = np.zeros_like(x)
        for _ in range(k):
            p = p + np.eye(len(x))[((1 - p) * x).argmax()]
        return p.tolist()

    x = np.array([3.0, 2.0, 1.0, 0.0])
    assert hard(x, 3) == [1, 1, 1, 0]
    assert hard(x, 4) == [2, 1, 1, 0]


def test_minus_infinity_among_the_scores_does_not_mend_the_laplace_code():
    for _ in range(20):
        x = RNG.standard_normal(100) * 0.1
        with np.errstate(all="ignore"):
            assert len(article_laplace_candidates(np.append(x, -np.inf), 95)) == 0
        level = np.log(2 * 5) - np.logaddexp.reduce(-x)
        assert level < x.min()
        assert soft_topk_threshold(x, 95, link="laplace") == pytest.approx(level, abs=1e-12)


def test_sparsemax_has_no_gradient_where_one_weight_is_left():
    import torch

    x = torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64)
    assert not torch.func.jacrev(sparsemax)(x).any()


def test_maps_of_bounded_support_give_equal_weights_to_different_scores():
    """Article [B] says that p_i > p_j just if x_i > x_j, of all of these."""
    x = np.array([3.0, 0.5, 0.0])
    for p in (sparsemax(x), entmax(x), perturbed_argmax(x, noise="uniform")):
        assert p.tolist() == [1, 0, 0]
    for noise in {*NOISES, GUMBEL} - {"uniform"}:
        assert np.all(np.diff(perturbed_argmax(x, noise=noise)) < 0)


def test_the_inequalities_of_the_gumbel_proof_are_not_independent():
    """Their product is 1/4, all of them together 1/3: ∫ Pr(both | ε₁) dε₁ is no product."""
    first = (np.arange(100_000) + 0.5) / 100_000  # ε₁, of three classes of equal probability
    each = first  # Pr(log ε_j < log ε₁ | ε₁)
    assert (each * each).mean() == pytest.approx(1 / 3, abs=1e-6)
    assert each.mean() ** 2 == pytest.approx(1 / 4, abs=1e-6)
