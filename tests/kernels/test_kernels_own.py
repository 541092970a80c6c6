"""Compiled code for links of a user's own, which consist of scalar formulas."""

import copy
import pickle
import threading
import warnings

import mpmath
import numpy as np
import pytest
import torch

import kofn
import own_links
from kofn import kernels, losses
from kofn.kernels import contract
from kofn.kernels.cpu import every
from kofn.kernels.cpu.compiler import now, own
from kofn.kernels.cpu.rows import launch
from kofn.kernels.cpu.runtime import own as own_work
from kofn.links.scalar import OWN

STUDENT = own_links.Student()
by_numba = now.by_numba
X = np.random.default_rng(3).normal(size=(5, 300)) * 3
V = np.random.default_rng(4).normal(size=(5, 300))
INF = np.inf

full = pytest.mark.full
AGAIN = [
    pytest.param(link, built_in, dtype, n, marks=() if marked else full)
    for link, built_in in ((own_links.Again, "logistic"), (own_links.Square, "entmax"))
    for dtype in ("float32", "float64")
    for n in (7, 300)
    for marked in [(link, dtype, n) == (own_links.Again, "float32", 7)]
]


def answers(x, link):
    """Weights, their gradient, thresholds, smoothed sums, losses with gradients, logarithms."""
    v = torch.tensor(V[:, : x.shape[1]]).to(x)
    x = x.clone().requires_grad_()
    target = (x.detach() > 1).to(x)
    for each in (
        kofn.soft_topk(x, 2.5, link=link),
        kofn.soft_topk_sum(x, 2.5, link=link),
        losses.topk_loss(x, target, link=link, reduction="none"),
        losses.topk_loss(x, 0.8 * target + 0.1, link=link, reduction="none"),
        kofn.log_soft_topk(x, 2.5, link=link),
    ):
        yield each.detach()
        cotangent = v if each.ndim == 2 else v[:, 0]
        yield torch.autograd.grad(each, x, cotangent)[0]
    yield kofn.soft_topk_threshold(x.detach(), 2.5, link=link)


@pytest.mark.full
@pytest.mark.parametrize(("link", "built_in", "dtype", "n"), AGAIN)
def test_the_formulas_of_a_built_in_link_have_its_bits(link, built_in, dtype, n):
    x = torch.tensor(X[:, :n], dtype=getattr(torch, dtype))
    assert kernels.serving_of("rows", x, "torch", link().inner) is launch
    for one, other in zip(answers(x, link()), answers(x, built_in), strict=True):
        if built_in == "entmax" and one.ndim == 1:
            # Its α − 1 is a number in the code, by whose reciprocal a sum's terms are multiplied.
            torch.testing.assert_close(one, other, rtol=4 * torch.finfo(x.dtype).eps, atol=0)
        else:
            assert torch.equal(one, other)


def student(z):
    return (1 + z / mpmath.sqrt(2 + z * z)) / 2


def gumbel(z):
    return mpmath.exp(-mpmath.exp(-z - mpmath.euler))


def exact(x, k, cdf):
    """(weights, the rows of their Jacobian), F′ of a digit by `diff`."""
    with mpmath.workdps(60):
        x, k = [mpmath.mpf(float(a)) for a in x], mpmath.mpf(k)
        low, high = min(x) - 10**4, max(x) + 10**4
        while high - low > mpmath.mpf(10) ** -50 * (1 + abs(low)):
            theta = (low + high) / 2
            more = mpmath.fsum(cdf(a - theta) for a in x) > k
            low, high = (theta, high) if more else (low, theta)
        p = [cdf(a - low) for a in x]
        w = [mpmath.diff(cdf, a - low) for a in x]
        total = mpmath.fsum(w)
        jacobian = [
            [w[i] * ((i == j) - w[j] / total) for j in range(len(x))] for i in range(len(x))
        ]
    return np.array(p, float), np.array(jacobian, float)


ROWS = [
    ([0.3, -1.0, 2.0, 0.7, 5.0], 2.5),
    ([1e6, 3.0, 2.0, -1e6, 1.0], 2.0),  # heavy tails have weight there
    ([300.0, 200.0, 0.0, -200.0, -300.0], 2.0),
    ([20.0, 0.0, -0.5, -1.0, -20.0], 1.0),
]


@pytest.mark.parametrize(("link", "cdf"), [
    (own_links.Student, student), pytest.param(own_links.Gumbel, gumbel, marks=full),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=full), "float64"])
def test_weights_and_gradients_are_those_of_its_distribution(link, cdf, dtype):
    eps = float(np.finfo(dtype).eps)
    for row, k in ROWS[: 4 if cdf is student else 1]:
        x = torch.tensor(row, dtype=getattr(torch, dtype), requires_grad=True)
        assert kernels.serving_of("rows", x, "torch", link()) is launch
        p, jacobian = exact(row, k, cdf)
        found = kofn.soft_topk(x, k, link=link())
        np.testing.assert_allclose(found.detach(), p, rtol=0, atol=8 * eps)
        for i in range(len(row)):
            (g,) = torch.autograd.grad(found[i], x, retain_graph=True)
            np.testing.assert_allclose(g, jacobian[i], rtol=64 * eps, atol=64 * eps)


def test_derivatives_of_first_and_second_order():
    x = torch.tensor(X[:2, :5], requires_grad=True)
    k = torch.tensor([1.5, 3.0], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0.7, 2.0], dtype=torch.float64, requires_grad=True)

    def weights(x, k, t):
        return kofn.soft_topk(x, k, link=STUDENT, temperature=t)

    assert torch.autograd.gradcheck(weights, (x, k, t))
    assert torch.autograd.gradgradcheck(weights, (x, k, t), fast_mode=True)


def test_special_scores_are_as_in_array_code(monkeypatch):
    x = np.array([[INF, 1, 2, -INF, 4], [np.nan, 1, 2, 3, 4], [-INF] * 5, [1e30, -1e30, 5, 4, 0]])
    k = np.array([1.5, 2, 1, 2])
    found = kofn.soft_topk(x, k, link=STUDENT)
    assert (found[x == -INF] == 0).all()  # exactly, however heavy the tail is
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    np.testing.assert_allclose(found, kofn.soft_topk(x, k, link=STUDENT), atol=1e-12)


def test_it_is_pickled_by_its_class_and_compiled_once_for_all_threads():
    assert pickle.loads(pickle.dumps(STUDENT)) is STUDENT
    assert copy.deepcopy(STUDENT) is STUDENT
    x, found = X[:, :7], []
    each = [
        threading.Thread(target=lambda: found.append(kofn.soft_topk(x, 2, link=STUDENT)))
        for _ in range(4)
    ]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    assert len(found) == 4
    assert all(np.array_equal(one, found[0]) for one in found)


@pytest.mark.full
def test_a_class_of_the_same_name_with_other_formulas_is_another_link():
    other, before = own_links.heavy("Student")(), kofn.soft_topk(X[0, :7], 2, link=STUDENT)
    assert (other.id, other.number) != (STUDENT.id, STUDENT.number)
    assert abs(kofn.soft_topk(X[0, :7], 2, link=other) - before).max() > 0.01
    assert np.array_equal(before, kofn.soft_topk(X[0, :7], 2, link=own_links.Student()))


def test_formulas_outside_of_the_vocabulary_are_array_code_and_say_why():
    with pytest.warns(
        RuntimeWarning, match=r"array code serves .*Cauchy.*: its formula tail .*`np"
    ):
        p = kofn.soft_topk(X[0, :5], 2, link=own_links.Cauchy())
    assert abs(p.sum() - 2) < 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kofn.soft_topk(X[0, :5], 2, link=own_links.Cauchy())  # it says so once


def test_without_numba_array_code_serves_and_says_so(monkeypatch):
    class Student(own_links.Student):
        smooth = False

    monkeypatch.setattr(kernels.own, "why_not", lambda number: "Numba is not installed")
    with pytest.warns(RuntimeWarning, match="Numba is not installed"):
        kofn.soft_topk(X[0, :5], 2, link=Student())


def test_code_of_built_in_links_is_made_of_the_same_functions():
    """Nothing is made again that does not read formulas or traits."""
    from kofn.kernels.cpu.rows import loops, worker

    remade = own.remade(STUDENT.number)
    for function in (loops.statistics, loops.close, loops.slope, worker.answer, worker.logs):
        assert remade(function) is function
    for function in (loops.write, worker.forward, worker.after, worker.compare):
        assert remade(function) is not function
    work = {code: getattr(worker, code.name) for code in launch.WORK}
    anew = {code for code, function in work.items() if remade(function) is not function}
    assert anew == {code._replace(kind=None) for code in own_work.CODES}
    assert OWN[STUDENT.number] is STUDENT


def test_one_search_serves_all_links_and_the_library_has_it(monkeypatch):
    """A link's own are a few passes, and what the search asks; the first call takes two seconds."""
    compiled = []
    monkeypatch.setattr(now, "by_numba", lambda code: compiled.append(code) or by_numba(code))
    assert {*own_work.CODES} <= {*every.functions((0,), (4,))}

    heavy = own_links.heavy("Heavy")()
    kofn.soft_topk(X[:, :7], 2, link=heavy)
    assert {code.kind for code in compiled if code.is_own} == {heavy.number}
    of_short_rows = {"open_usual", "usual"}
    passes = {"evaluate", "first_evaluation", "mend", "write"} | of_short_rows
    assert sorted(code.name for code in compiled if code.is_own) == sorted({"answers"} | passes)


def test_the_shared_search_knows_the_ways_of_every_link():
    for link in OWN.values():
        assert contract.ways_of(link.number) in contract.WAYS
    both = own_links.Again, own_links.Square
    told = {own_work.told_of(link().inner.number)[0] for link in both}
    assert len(told) == 2
    assert min(told) >= contract.NEXT
    assert own_work.told_of(contract.LINEAR) is None


def test_compiled_programs_of_torch_take_it():
    x = torch.tensor(X[:, :7], dtype=torch.float64)
    step = torch.compile(lambda x: kofn.soft_topk(x, 2, link=STUDENT), fullgraph=True)
    assert torch.equal(step(x), kofn.soft_topk(x, 2, link=STUDENT))


def test_programs_of_jax_have_its_array_code():
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(X[:, :7], jax.numpy.float32)
    found = jax.jit(lambda x: kofn.soft_topk(x, 2, link=STUDENT))(x)
    np.testing.assert_allclose(found, kofn.soft_topk(X[:, :7], 2, link=STUDENT), atol=1e-6)
