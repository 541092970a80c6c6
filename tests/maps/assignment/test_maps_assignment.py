"""soft_assignment against other solvers, its laws."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from kofn import links, soft_assignment, soft_assignment_prices, soft_topk
from oracles import assignment as oracle
from oracles.assignment import margins, matrix
from support import LINKS, ONE_OF_EACH, SMOOTH, Framework, every_link

INF, NAN = math.inf, math.nan
MARGINS = {"float64": 1e-9, "float32": 2e-6}
EVERY = LINKS


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.full)])
@every_link
def test_rows_and_columns_have_their_sums(link, name, dtype):
    framework = Framework(name)
    for m, n, k in ((40, 6, 2), (6, 40, 9), (12, 12, 1)):
        for t in (1.0, 0.1):
            x = framework.array(matrix(m, n), dtype)
            w = soft_assignment(x, k, link=link, temperature=t)
            assert framework.is_kind(w)
            assert framework.dtype(w) == dtype
            assert margins(framework.numpy(w), k, m * k / n) < MARGINS[dtype]


@pytest.mark.parametrize("link", EVERY)
def test_weights_prices_and_values_are_those_of_a_general_solver(link):
    x = matrix(7, 4)
    k, c = np.array([1.0, 2, 0.5, 1.5, 3, 1, 1]), np.array([3.0, 2.5, 2, 2.5])
    wanted, alpha, beta, value = oracle.minimised(x, k, c, 0.7, link)
    options = dict(link=link, temperature=0.7)
    w = soft_assignment(x, k, c, **options)
    rows, columns = soft_assignment_prices(x, k, c, **options)
    assert abs(w - wanted).max() < 2e-5
    if link in SMOOTH:  # SciPy's search has fewer digits of the others' prices
        assert max(abs(rows - alpha).max(), abs(columns - beta).max()) < 2e-4
    assert abs(columns.sum()) < 1e-12
    found, slopes = oracle.dual(np.concatenate([rows, columns]), x, k, c, 0.7, link)
    assert abs(slopes).max() < 1e-9
    assert value - 1e-6 < found < value + 1e-9
    # No gap between it and the value of the weights: they are the optimum.
    one = links.entmax(1.5) if link == "entmax" else getattr(links, link)
    inside = np.where((w > 0) & (w < 1), w, 0.5)
    regulariser = np.where((w > 0) & (w < 1), one.omega(inside), 0.0)
    assert abs((w * x).sum() - 0.7 * regulariser.sum() - found) < 1e-8


def test_without_a_bound_it_is_sinkhorns_plan():
    """Where no entry comes to 1, the exponential link is the entropic transport."""
    x, k, c = matrix(8, 6), np.full(8, 0.5), np.array([0.4, 0.9, 0.7, 0.6, 0.8, 0.6])
    w = soft_assignment(x, k, c, link="exponential", temperature=0.8)
    plan = oracle.sinkhorn(x, k, c, 0.8)
    assert plan.max() < 1
    assert abs(w - plan).max() < 1e-10
    tight = soft_assignment(x, 4 * k, 4 * c, link="exponential", temperature=0.3)
    assert oracle.sinkhorn(x, 4 * k, 4 * c, 0.3).max() > 1
    assert margins(tight, 4 * k, 4 * c) < 1e-9


@every_link
def test_a_low_temperature_gives_the_linear_program(link):
    x, k, c = matrix(9, 5, seed=2), np.full(9, 2.0), np.array([3.0, 4, 3, 4, 4])
    wanted, value = oracle.linear_program(x, k, c)
    w = soft_assignment(x, k, c, link=link, temperature=2e-3)
    assert margins(w, k, c) < 1e-9
    assert abs(w - wanted).max() < 2e-3
    assert abs((w * x).sum() - value) < 1e-3
    hard = soft_assignment(x, k, c, link=link, temperature=2e-3, hard=True)
    assert np.array_equal(hard, wanted.round())


def test_a_hard_choice_is_near_the_optimum_in_value_and_loads():
    """What docs/maps_assignment.md says of 200×10 scores at T = 0.05."""
    x, k, c = matrix(200, 10), np.full(200, 2.0), np.full(10, 40.0)
    _, value = oracle.linear_program(x, k, c)
    hard = soft_assignment(x, 2, temperature=0.05, hard=True)
    assert set(np.unique(hard)) == {0, 1}
    assert np.array_equal(hard.sum(1), k)
    assert abs(hard.sum(0) / 40 - 1).max() < 0.15
    assert abs((hard * x).sum() / value - 1) < 0.01
    alone = soft_topk(x, 2, hard=True)
    skewed = x + np.linspace(-1, 1, 10)
    loads = soft_assignment(skewed, 2, temperature=0.05, hard=True).sum(0)
    assert abs(loads / 40 - 1).max() < 0.15
    assert abs(soft_topk(skewed, 2, hard=True).sum(0) / 40 - 1).max() > 0.5
    assert alone.sum() == hard.sum()


def test_prices_give_the_weights():
    x, k = matrix(10, 6), 2.5
    for y in (x, x.T.copy()):
        alpha, beta = soft_assignment_prices(y, k, temperature=0.3)
        w = soft_assignment(y, k, temperature=0.3)
        assert abs(w - oracle.cdf((y - alpha[:, None] - beta) / 0.3, "logistic")).max() < 1e-13
        assert abs(beta.sum()) < 1e-13


@every_link
def test_it_does_not_matter_which_side_is_called_rows(link, kernels_on, reference):
    x, k, c = matrix(6, 9), np.linspace(1, 4, 6), np.full(9, 15 / 9)
    given, turned = (x, k, c), (x.T.copy(), c, k)
    options = {"link": link, "temperature": 0.5}
    assert np.array_equal(soft_assignment(*given, **options).T, soft_assignment(*turned, **options))
    w, other = (reference(soft_assignment, *each, **options) for each in (given, turned))
    assert np.array_equal(w.T, other)


def test_shifts_of_rows_and_columns_change_nothing():
    x = matrix(9, 5)
    w = soft_assignment(x, 2, temperature=0.2)
    moved = x + np.arange(9.0)[:, None] * 3 - np.arange(5.0) * 7
    assert abs(soft_assignment(moved, 2, temperature=0.2) - w).max() < 1e-11


def test_batches_are_one_matrix_after_another(framework):
    if framework.name == "jax":
        pytest.skip("test_maps_assignment_gradients.py has vmap")
    x, t = matrix(24, 5).reshape(2, 3, 4, 5), np.array([[1.0], [0.1]])
    k = np.array([1.0, 2, 1, 3])
    given = [framework.array(a) for a in (x, k, t)]
    w = framework.numpy(soft_assignment(given[0], given[1], temperature=given[2]))
    for i in range(2):
        for j in range(3):
            alone = soft_assignment(x[i, j], k, temperature=float(t[i, 0]))
            assert abs(w[i, j] - alone).max() < 1e-10


def test_alpha_per_matrix():
    x, alpha = matrix(12, 4).reshape(2, 6, 4), np.array([1.2, 1.8])
    w = soft_assignment(x, 2, link=links.entmax(alpha))
    for i in range(2):
        alone = soft_assignment(x[i], 2, link=links.entmax(float(alpha[i])))
        assert abs(w[i] - alone).max() < 1e-9


# Special cases.


@pytest.mark.parametrize(
    ("link", "size"),
    [(link, 1e-30) for link in LINKS]
    + [
        pytest.param(link, 1e30, marks=[] if link in ONE_OF_EACH else pytest.mark.full)
        for link in LINKS
    ],
)
def test_scores_of_any_size_have_their_margins(link, size):
    w = soft_assignment(matrix(8, 5) * size, 2, link=link)
    assert abs(w.sum(1) - 2).max() < 1e-6
    assert abs(w.sum(0) - 3.2).max() < 1e-3
    if size < 1:
        assert abs(w - 0.4).max() < 1e-12
    else:
        _, best = oracle.linear_program(matrix(8, 5), np.full(8, 2.0), np.full(5, 3.2))
        assert (w * matrix(8, 5)).sum() > 0.8 * best


@every_link
def test_a_temperature_that_floats_resolve_is_not_raised(link):
    rng = np.random.default_rng(0)
    x, k, c = rng.standard_normal((30, 7)), rng.uniform(0.2, 5, 30), rng.uniform(1, 3, 7)
    c *= k.sum() / c.sum()
    w = soft_assignment(x, k, c, link=link, temperature=1e-5)
    assert abs(w.sum(0) / c - 1).max() < 1e-8
    alpha, beta = soft_assignment_prices(x, k, c, link=link, temperature=1e-5)
    assert abs(w - oracle.cdf((x - alpha[:, None] - beta) / 1e-5, link)).max() < 1e-6


def test_single_precision_of_jax_has_the_margins_of_far_scores():
    jax = pytest.importorskip("jax")
    x = matrix(30, 7).astype(np.float32)
    weights = jax.jit(lambda x: soft_assignment(x, 2))
    for size in (1e10, 1e30):
        w = np.asarray(weights(jax.numpy.asarray(x * np.float32(size))), np.float64)
        assert abs(w.sum(-1) - 2).max() < 1e-5
        assert abs(w.sum(-2) / (60 / 7) - 1).max() < 1e-4


@every_link
def test_ties_share(link):
    x = np.zeros((6, 4))
    assert abs(soft_assignment(x, 2, link=link, temperature=1e-3) - 0.5).max() < 1e-12
    x[:, 2:] = 1.0
    w = soft_assignment(x, 1, np.array([1.0, 1, 2, 2]), link=link, temperature=0.1)
    assert abs(w - np.array([1, 1, 2, 2]) / 6).max() < 1e-12


def test_an_additive_mask_is_one_even_if_it_is_no_minimum():
    x, rng = matrix(10, 6), np.random.default_rng(1)
    mask = rng.random((10, 6)) < 0.7
    w = soft_assignment(x, 1, mask=mask, temperature=0.2)
    assert np.all(w[~mask] == 0)
    far = soft_assignment(np.where(mask, x, x - 1e9), 1, temperature=0.2)
    assert abs(w - far).max() < 1e-9
    least = np.where(mask, x, np.finfo(x.dtype).min)
    assert np.array_equal(w, soft_assignment(least, 1, temperature=0.2))
    assert np.array_equal(w, soft_assignment(np.where(mask, x, -INF), 1, temperature=0.2))
    hidden = np.where(mask, x, NAN)
    assert np.array_equal(w, soft_assignment(hidden, 1, mask=mask, temperature=0.2))


def test_a_step_on_flat_ground_does_not_leap_beyond_all_prices():
    """S is nearly 0 at prices of 0, where all rows but one have weights of 0 and 1."""
    cases = [
        (
            [[-11.89682004, 0.79509488, -17.86109352], [8.04860151, -6.70606639, 4.34903411]],
            [[0.10094655, 0.79256533, 0.75741448], [0, 0.67350041, 0]],
        ),
        (
            [[-0.42806293, 1.25931728, 1.68226309], [1.51067813, 0.41297608, 2.60248559]],
            [[0, 0.84246215, 0], [0, 0.97223017, 0.1569228]],
        ),
    ]
    for x, plan in map(np.array, cases):
        for t in (0.1, 0.5, 1.0, 2.0, 3.0, 5.0):
            w = soft_assignment(x, plan.sum(1), plan.sum(0), link="linear", temperature=t)
            assert abs(w.sum(1) - plan.sum(1)).max() < 1e-9
            assert abs(w.sum(0) - plan.sum(0)).max() < 1e-9


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_link
def test_few_passes_over_a_large_matrix(link, dtype, monkeypatch):
    """A pass is the weights of all rows, or their thresholds; the answer is weights once more."""
    from kofn.maps.assignment import newton, sight

    passes, plain, plainly = [], newton.route.answer, sight.route.again

    def counted(operation, *given):
        passes.append(operation.name)
        return plain(operation, *given)

    def again(operation, *given):
        found = plainly(operation, *given)
        return lambda *each: passes.append(operation.name) or found(*each)

    for module in (newton, sight):
        monkeypatch.setattr(module, "route", SimpleNamespace(answer=counted, again=again))
    x = matrix(4096, 64).astype(dtype)
    for t, most in ((1.0, 5), (0.1, 6)):
        passes.clear()
        w = soft_assignment(x, 8, link=link, temperature=t)
        assert margins(w, 8, 512) < {"float64": 1e-12, "float32": 1e-7}[dtype]
        assert 0 < passes.count(newton.WEIGHTS.name) <= most
        assert len(passes) <= (12 if link in ("logistic", "normal") else 25)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_conjugate_gradients_find_the_same_weights(framework, dtype, monkeypatch):
    """They take the place of a factorised S where both sides of a matrix are large."""
    from kofn.maps.assignment import newton

    x, found = framework.array(np.stack([matrix(40, 30), matrix(40, 30, 1)]), dtype), {}
    calls, plain = [], newton.conjugate
    monkeypatch.setattr(newton, "conjugate", lambda *a: calls.append(1) or plain(*a))
    t = framework.array(np.array([1.0, 0.01]), dtype)
    for most in (30, 29):
        monkeypatch.setattr(newton, "DENSE", most)
        if framework.name == "jax":
            pytest.importorskip("jax").clear_caches()
        found[most] = framework.numpy(soft_assignment(x, 3, temperature=t))
        assert bool(calls) == (most == 29)
        assert margins(found[most], 3, 4) < {"float64": 1e-9, "float32": 2e-6}[dtype]
    assert abs(found[29] - found[30]).max() < {"float64": 1e-8, "float32": 1e-3}[dtype]


HARD = {
    "skewed": lambda rng: (rng.standard_normal((60, 8)) + np.linspace(-9, 9, 8), 2.0, 15.0),
    "square": lambda rng: (rng.standard_normal((16, 16)), 1.0, 1.0),
    "integers": lambda rng: (rng.integers(0, 3, (30, 6)).astype(float), 2.0, 10.0),
    "cubes": lambda rng: (rng.standard_normal((30, 6)) ** 3 * 10, 2.0, 10.0),
    "unequal": lambda rng: (
        rng.standard_normal((30, 5)),
        (k := rng.uniform(0.01, 4.9, 30)),
        np.full(5, k.sum() / 5),
    ),
}


@pytest.mark.parametrize("name", HARD)
@every_link
def test_the_search_ends_at_low_temperatures(link, name):
    x, k, c = HARD[name](np.random.default_rng(5))
    k, c = np.broadcast_to(k, len(x)), np.broadcast_to(c, x.shape[1])
    for t in (1.0, 0.1, 0.01, 1e-3):
        w = soft_assignment(x, k, c, link=link, temperature=t)
        assert abs(w.sum(-1) - k).max() < 1e-9 * np.max(k)
        assert abs(w.sum(-2) - c).max() < 1e-6 * np.max(c)


def test_links_are_all_those_of_the_table():
    assert set(EVERY) == {str(link) for link in LINKS if isinstance(link, str)} | {"entmax"}
