"""soft_assignment against packages that solve parts of its problem: POT, OTT-JAX and cvxpy."""

import numpy as np
import pytest

from kofn import soft_assignment, soft_assignment_prices

pytestmark = pytest.mark.extras

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 8))
K = RNG.uniform(0.2, 0.6, 12)
C = RNG.uniform(0.3, 0.8, 8)
C *= K.sum() / C.sum()
T = 0.8


def unbounded(k=K, c=C):
    """Our weights and prices of the exponential link: e^(z − 1) below 1."""
    options = dict(link="exponential", temperature=T)
    return soft_assignment(X, k, c, **options), *soft_assignment_prices(X, k, c, **options)


def test_pot_has_the_same_plan_where_no_entry_comes_to_one():
    ot = pytest.importorskip("ot")
    options = dict(method="sinkhorn_log", numItermax=5000, stopThr=1e-13)
    weights, _, beta = unbounded()
    plan, log = ot.sinkhorn(K, C, -X, T, log=True, **options)
    assert plan.max() < 1
    assert np.abs(weights - plan).max() < 1e-10
    # Its potentials are −α and −β, up to a constant.
    potential = T * log["log_v"]
    assert np.abs(beta + potential - potential.mean()).max() < 1e-9
    # Margins six times as large: its plan has entries above 1, the bounded weights do not.
    weights, _, _ = unbounded(6 * K, 6 * C)
    plan = ot.sinkhorn(6 * K, 6 * C, -X, T, **options)
    assert plan.max() > 1 >= weights.max()
    assert np.abs(weights.sum(0) - 6 * C).max() < 1e-9


def test_ott_has_the_same_plan_and_gradient_where_no_entry_comes_to_one():
    jax = pytest.importorskip("jax")
    pytest.importorskip("ott")
    from ott.geometry import geometry
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    solver = sinkhorn.Sinkhorn(threshold=1e-6, max_iterations=2000, implicit_diff=None)
    v = RNG.standard_normal(X.shape)

    def plan(x):
        problem = linear_problem.LinearProblem(geometry.Geometry(-x, epsilon=T), K, C)
        return solver(problem).matrix

    with jax.enable_x64(True):
        found, wanted = unbounded()[0], np.asarray(plan(X))
        slope = np.asarray(jax.grad(lambda x: (plan(x) * v).sum())(X))
    assert np.abs(found - wanted).max() < 1e-5
    torch = pytest.importorskip("torch")
    leaf = torch.tensor(X, requires_grad=True)
    soft = soft_assignment(leaf, *map(torch.tensor, (K, C)), link="exponential", temperature=T)
    ours = torch.autograd.grad(soft, leaf, torch.tensor(v))[0].numpy()
    assert np.abs(ours).max() > 0.1
    assert np.abs(ours - slope).max() < 1e-4


def regulariser(cp, link, w):
    """ΣΩ(w) = Σ∫₀^w F⁻¹ in the terms of cvxpy."""
    return {
        "logistic": lambda: -cp.sum(cp.entr(w)) - cp.sum(cp.entr(1 - w)),
        "exponential": lambda: -cp.sum(cp.entr(w)),
        "linear": lambda: cp.sum_squares(w) / 2 - cp.sum(w) / 2,
    }[link]()


@pytest.mark.parametrize("link", ["logistic", "exponential", "linear"])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_cvxpy_has_the_same_optimum_and_prices(link, factor):
    """The margins of the larger factor press entries against 1 with the last two links."""
    cp = pytest.importorskip("cvxpy")
    k, c, t = factor * K, factor * C, 0.3
    w = cp.Variable(X.shape)
    rows, columns = cp.sum(w, axis=1) == k, cp.sum(w, axis=0) == c
    value = cp.sum(cp.multiply(X, w)) - t * regulariser(cp, link, w)
    problem = cp.Problem(cp.Maximize(value), [rows, columns, w >= 0, w <= 1])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    found = soft_assignment(X, k, c, link=link, temperature=t)
    assert np.abs(found - w.value).max() < 1e-5
    w.save_value(found)
    assert abs(problem.objective.value - problem.value) < 1e-6
    alpha, beta = soft_assignment_prices(X, k, c, link=link, temperature=t)
    a, b = rows.dual_value, columns.dual_value
    sign = np.sign((a * alpha).sum())
    a, b = sign * a + (sign * b).mean(), sign * b - (sign * b).mean()
    assert np.abs(beta - b).max() < 1e-4
    assert np.abs(alpha - a).max() < 1e-4
