"""Every declared operation, by every adapter: answers, derivatives, edges and memory."""

import contextlib
import dataclasses
import functools
import inspect
import os

import jax
import numpy as np
import pytest
import table_of_kernels
import torch
from torch import distributed
from torch.distributed.tensor.experimental import register_sharding

import kofn
from kofn import links, losses
from kofn.adapters import route
from kofn.adapters.torch.operators import REGISTERED, register
from kofn.arrays.autodiff import stop_gradient
from kofn.formulas import answers
from kofn.operations import choice, topk, truncated
from kofn.operations.declared import DECLARED
from kofn.operations.operation import Operation
from kofn.operations.signatures import ROWS as ROWS_OF_TOPK
from kofn.rows.given import ONE, given_for_kernels
from kofn.rows.segments.given import segment_given
from kofn.solver.reductions import DENSE
from ranks import joined

INF, NAN = np.inf, np.nan
COSTS = np.array([1.0, 2.0, 0.5, 1.5, 3.0, 0.7, 1.2])
N, ROWS = 7, 4


def like(x, values):
    """Numbers as an array of the framework of x."""
    if isinstance(x, torch.Tensor):
        made = torch.tensor(np.asarray(values))
        made = made if made.dtype == torch.int64 else made.to(x.dtype)
        if hasattr(x, "device_mesh"):
            from torch.distributed.tensor import Replicate, distribute_tensor

            return distribute_tensor(made, x.device_mesh, [Replicate()])
        return made
    values = np.asarray(values)
    made = values if values.dtype == np.int64 else values.astype(x.dtype)
    return made if isinstance(x, np.ndarray) else jax.numpy.asarray(made)


def target(x, *, labels=False):
    rows = np.arange(x.shape[0])
    if labels:
        return like(x, (rows % N).astype(np.int64))
    hot = np.zeros((len(rows), N))
    hot[rows, rows % N] = hot[rows, (rows + 2) % N] = 1
    return like(x, hot)


def knapsack(x, k=3.0, t=1.0, costs=None, *, of=kofn.soft_knapsack, **options):
    costs = like(x, COSTS) if costs is None else costs
    return of(x, costs, k, temperature=t, **options)


def bought(x):
    return knapsack(x.detach() if hasattr(x, "detach") else x, hard=True)


def single_weights(x, k=2.5, t=0.7):
    checked = given_for_kernels(x, k, links.logistic, t, -1, None, halves=True)
    return route.answer(topk.SINGLE_WEIGHTS, checked)


def ranks_of(x, *mask):
    """The places of the smallest and the third smallest of each row."""
    ranks = like(x, np.tile(np.array([0, 2]), (x.shape[0], 1)))
    operation = choice.RANKED_OF_MASKED if mask else choice.RANKED
    return route.answer(operation, stop_gradient(x), *mask, ranks)


def least_of_set(x):
    checked = given_for_kernels(x, ONE, links.exponential, 1.0, -1, None)
    return route.answer(truncated.LEAST, checked, settings=(5, 0.9, None))


CASES = {
    "weights": lambda x, k=2.5, t=0.7: kofn.soft_topk(x, k, temperature=t),
    "single_weights": single_weights,
    "located": lambda x, k=2.5, t=1.0: kofn.soft_topk_threshold(x, k, temperature=t),
    "value": lambda x, k=2.5, t=1.0: kofn.soft_topk_sum(x, k, temperature=t),
    "log_weights": lambda x, k=2.5, t=1.0: kofn.log_soft_topk(x, k, temperature=t),
    "gap": lambda x, t=1.0: losses.topk_loss(x, target(x), temperature=t, reduction="none"),
    "truncated": lambda x, t=1.0: kofn.sparse_softmax(x, k=3, temperature=t),
    "truncated_loss": lambda x, t=1.0: losses.softmax_loss(
        x, target(x, labels=True), temperature=t, reduction="none"
    ),
    "sparse_softmax": lambda x, t=1.0: kofn.sparse_softmax(x, k=5, p=0.9, temperature=t),
    "sparse_softmax_loss": lambda x, t=1.0: losses.sparse_softmax_loss(
        x,
        target(x, labels=True),
        k=5,
        p=0.9,
        outside="kept",
        temperature=t,
        reduction="none",
    ),
    "sparse_softmax_entropy": lambda x, t=1.0: kofn.metrics.sparse_softmax_entropy(
        x, k=5, min_p=0.05, temperature=t
    ),
    "sparse_softmax_least": lambda x: least_of_set(x),
    "softmax_rest": lambda x, t=1.0: losses.topk_kl(
        x,
        like(x, np.tile(np.array([2, 5]), (x.shape[0], 1))),
        like(x, np.log(np.tile([0.5, 0.3], (x.shape[0], 1)))),
        temperature=t,
        reduction="none",
    ),
    "hard_weights": lambda x, k=2.5, t=1.0: kofn.soft_topk(x, k, temperature=t, hard=True),
    "hard": lambda x: kofn.hard_topk(x, 2),
    "largest": lambda x: kofn.topk_gates(x, 2)[1],
    "first": lambda x: kofn.topk(x, 2).indices,
    "first_of_masked": lambda x: kofn.topk(x, 2, mask=x > 0).indices,
    "ranked": lambda x: ranks_of(x),
    "ranked_of_masked": lambda x: ranks_of(x, x > 0),
    "knapsack_weights": knapsack,
    "knapsack_hard": functools.partial(knapsack, hard=True),
    "knapsack_fill": bought,
    "knapsack_threshold": functools.partial(knapsack, of=kofn.soft_knapsack_threshold),
    "knapsack_value": functools.partial(knapsack, of=kofn.soft_knapsack_value),
    "subset_marginals": lambda x: kofn.KSubset(x, 3).marginals(),
    "subset_log_count": lambda x: kofn.KSubset(x, 3).log_partition(),
    "subset_tails": lambda x: kofn.KSubset(x, 3).entropy(),
    "noisy_argmax": lambda x, t=1.0: kofn.perturbed_argmax(x, temperature=t),
}
"""By the name of an operation, a public function that it answers, of scores and what is learned."""
NUMBERS = {
    "k": np.linspace(1.5, 4, ROWS),
    "t": np.linspace(0.4, 2, ROWS),
    "costs": np.outer(np.linspace(0.8, 1.2, ROWS), COSTS),
}
INDICES = ("largest", "first", "first_of_masked", "ranked", "ranked_of_masked")
CONSTANT = ("hard", "sparse_softmax_least", *INDICES, "knapsack_fill")
KEPT = {
    **dict.fromkeys(
        ("weights", "single_weights", "hard_weights", "located", "log_weights"), (1.0, 2)
    ),
    "value": (2.0, 2),
    "gap": (2.0, 2),  # p − t and the target, which is the caller's
    "truncated": (2.0, 0),
    "truncated_loss": (1.0, 3),
    "sparse_softmax": (2.0, 0),
    "sparse_softmax_loss": (1.0, 3),
    "sparse_softmax_entropy": (2.0, 0),
    "softmax_rest": (1.0, 80),
    **dict.fromkeys(("knapsack_weights", "knapsack_hard", "knapsack_threshold"), (2.0, 4)),
    "knapsack_value": (3.0, 5),
    # The array code around the sums, and the nodes.
    "subset_marginals": (1.25, 1),
    "subset_log_count": (7.0, 0),
    "subset_tails": (10.0, 0),
    "noisy_argmax": (3.0, 149),  # the answer, too: what has no weight carries no cotangent
}
"""What autograd keeps at most: in units of the scores, and in numbers per row."""
operations = pytest.mark.parametrize("name", CASES)
LEARNING = [name for name in CASES if name not in CONSTANT]
learning = pytest.mark.parametrize("name", LEARNING)
numbers = pytest.mark.parametrize(
    ("name", "which"),
    [
        (name, n)
        for name in LEARNING
        for n in NUMBERS
        if n in inspect.signature(CASES[name]).parameters
    ],
)


def scores(dtype=np.float64, rows=ROWS):
    return (np.random.default_rng(3).standard_normal((rows, N)) * 2).astype(dtype)


def eager(x):
    return torch.tensor(x)


@contextlib.contextmanager
def sharded():
    """A maker of DTensors, of which one process has all rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    kernels = os.environ.get("KOFN_KERNELS", "on")
    with joined(distributed.HashStore(), 0, 1, kernels):
        mesh = init_device_mesh("cpu", (1,))
        yield lambda x: distribute_tensor(torch.tensor(x), mesh, [Shard(0)])


@contextlib.contextmanager
def adapter(name):
    if name == "dtensor":
        with sharded() as make:
            yield make
    else:
        yield {"numpy": np.asarray, "torch": eager, "jax": jax.numpy.asarray}[name]


def plain(x):
    x = x.full_tensor() if hasattr(x, "full_tensor") else x
    return np.asarray(x.detach().double() if isinstance(x, torch.Tensor) else x, np.float64)


@pytest.fixture
def by_array_code(monkeypatch):
    """A function's answer and its first and second derivatives by array code in float64."""
    monkeypatch.delenv("KOFN_KERNELS", raising=False)

    def of(function, x, order):
        function = CASES.get(function, function)
        with monkeypatch.context() as patched:
            patched.setenv("KOFN_KERNELS", "reference")
            return derivative(function, torch.tensor(np.asarray(x, np.float64)), order)

    return of


def derivative(function, x, order):
    """The answer, or the first or second derivative along fixed directions, of torch tensors."""
    if order == 0:
        return plain(function(x))
    x = x.detach().clone().requires_grad_()
    answer = function(x)
    v = like(answer, np.cos(np.arange(answer.numel())).reshape(answer.shape))
    (first,) = torch.autograd.grad((answer * v).sum(), x, create_graph=order > 1)
    if order == 1:
        return plain(first)
    u = like(first, np.sin(np.arange(first.numel())).reshape(first.shape))
    return plain(torch.autograd.grad((first * u).sum(), x)[0])


def test_every_declaration_has_a_case():
    others = "subset_marginals", "subset_log_count", "subset_tails", "noisy_argmax"
    assert {*CASES} == {*(operation.name for operation in DECLARED), *others}


@operations
@pytest.mark.parametrize("way", ["numpy", "torch", "dtensor", "jax"])
def test_answers_are_those_of_the_array_code(name, way, by_array_code):
    x = scores()
    with adapter(way) as make:
        found = plain(CASES[name](make(x)))
    np.testing.assert_allclose(found, by_array_code(name, x, 0), rtol=1e-9, atol=1e-11)


@learning
@pytest.mark.parametrize("way", ["torch", "dtensor"])
@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_are_those_of_the_array_code(name, way, order, by_array_code):
    x = scores()
    with adapter(way) as make:
        found = derivative(CASES[name], make(x), order)
    np.testing.assert_allclose(found, by_array_code(name, x, order), rtol=1e-7, atol=1e-9)


@numbers
@pytest.mark.parametrize("way", ["torch", "dtensor"])
@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_in_what_else_is_learned(name, which, way, order, by_array_code):
    def of(number):
        make = maker if hasattr(number, "device_mesh") else torch.tensor
        return CASES[name](make(scores()), **{which: number})

    with adapter(way) as maker:
        found = derivative(of, maker(NUMBERS[which]), order)
    np.testing.assert_allclose(
        found, by_array_code(of, NUMBERS[which], order), rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize("name", ["weights", "log_weights", "gap", "knapsack_weights"])
@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_of_primitives_are_those_of_the_array_code(name, order, by_array_code):
    x, function = jax.numpy.asarray(scores()), CASES[name]
    v = np.cos(np.arange(function(x).size)).reshape(function(x).shape)

    def first(x):
        return jax.grad(lambda x: (function(x) * v).sum())(x)

    u = np.sin(np.arange(x.size)).reshape(x.shape)
    found = jax.jit(first if order == 1 else jax.grad(lambda x: (first(x) * u).sum()))(x)
    np.testing.assert_allclose(found, by_array_code(name, x, order), rtol=1e-7, atol=1e-9)


@operations
@pytest.mark.parametrize("way", ["numpy", "torch", "dtensor", "jax"])
def test_a_nan_stays_in_its_row_and_masks_count_as_deleted(name, way):
    x = scores()
    with adapter(way) as make:
        usual = plain(CASES[name](make(x)))
        x[1, 0], x[2, [1, 5]] = NAN, [-INF, np.finfo(x.dtype).min]
        found = plain(CASES[name](make(x)))
        x[2, 5] = -INF
        again = plain(CASES[name](make(x)))
    assert np.array_equal(found[[0, 3]], usual[[0, 3]])
    assert np.array_equal(found[2], again[2], equal_nan=True)
    if name not in INDICES:  # a NaN is no score to choose, but it has a place
        assert np.isnan(found[1]).any()


@operations
@pytest.mark.parametrize("way", ["numpy", "torch", "jax"])
def test_an_empty_batch_and_half_precision(name, way):
    with adapter(way) as make:
        empty = CASES[name](make(scores(rows=0)))
        assert empty.shape[0] == 0
        half = CASES[name](make(scores(np.float16)))
        wide = CASES[name](make(scores(np.float16).astype(np.float32)))
    np.testing.assert_allclose(plain(half), plain(wide), rtol=2e-3, atol=1e-3)


@learning
@pytest.mark.usefixtures("kernels_on")
def test_what_is_kept_for_the_way_back(name):
    sizes, x = [], torch.tensor(scores(np.float32, 50)).requires_grad_()

    def pack(tensor):
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function = REGISTERED[name].operation  # noqa: F841  (it has an operator)
        CASES[name](x * 1)
    entries, numbers = KEPT[name]
    # The product above keeps nothing; a loss over rows may keep one more number for its mean.
    assert sum(sizes) <= 4 * 50 * (entries * N + numbers + 2)


def test_the_operators_take_and_give_what_is_declared():
    """Shapes and dtypes without entries are those with them: what compilers go by."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.randn(3, 5, N)
    k = torch.full((3, 5), 2.0)
    for rows in ((None, 2.0, None, 1.0), (k, None, k, None)):
        for name in ("weights", "located", "log_weights", "hard_weights"):
            operator = getattr(torch.ops.kofn, name).default
            whole = operator(x, *rows, "logistic", None)
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fakes = [mode.from_tensor(a) if a is not None else None for a in (x, k)]
                given = [fakes[1] if a is k else a for a in rows]
                fake = operator(fakes[0], *given, "logistic", None)
            assert [(a.shape, a.dtype) for a in whole] == [(a.shape, a.dtype) for a in fake]


def test_the_page_has_the_table_that_the_declarations_make():
    """Whatever has no kernel says why, or there is no table."""
    assert table_of_kernels.PART.text == table_of_kernels.table(), table_of_kernels.PART.command


def weighted(rows, a, over=DENSE, *, theta):
    return over.sum(answers.weights(rows, over, theta=theta) * a)


def weighted_by_kernel(backend, given, a):
    p, theta = topk.weights_by_kernel(backend, given)
    return (p * a).sum(-1), p, theta


def weighted_back(backend, given, cotangent, a, theta):
    return topk.WEIGHTS_BACK.kernel(backend, given, cotangent[..., None] * a, theta)


TOY = Operation(
    name="toy_weighted_sum",
    takes="x n, a n, k #, t #, link",
    gives="answer r, p n, theta 2",
    of=ROWS_OF_TOPK,
    kernel=weighted_by_kernel,
    reference=weighted,
    back=(
        Operation(
            name="toy_weighted_sum_backward",
            takes="cotangent r, x n, a n, theta 2, k #, t #, link",
            gives="x n, k+t 2 if k t",
            of=ROWS_OF_TOPK,
            kernel=weighted_back,
        ),
        Operation(
            name="",
            takes="cotangent r, p n",
            gives="a n",
            of=ROWS_OF_TOPK,
            kernel=lambda _, given, cotangent, p: given.over.expand(cotangent) * p,
            elementwise=True,
        ),
    ),
)
"""Σ a·p, with an argument per entry that has a gradient: nothing in src/kofn knows of it."""


def toy(x, a, k, t, over=None):
    if over is None:
        checked = given_for_kernels(x, k, links.entmax(1.3), t, -1, None)
    else:
        options = dict(segment_ids=None, ptr=over, num_segments=None)
        checked = segment_given(x, k, links.entmax(1.3), t, None, **options)
    return route.answer(TOY, checked, a)


@pytest.fixture(scope="module")
def toy_operators():
    register(TOY)
    with sharded():  # DTensor's part of PyTorch is loaded
        from kofn.adapters.torch.sharding import rule_of

        for operation in (TOY, TOY.back[0]):
            operator = getattr(torch.ops.kofn, operation.name).default
            register_sharding(operator)(rule_of(REGISTERED[operation.name]))


def toy_leaves(make=torch.tensor):
    a = np.cos(np.arange(ROWS * N)).reshape(ROWS, N)
    k, t = np.linspace(0.5, 4, ROWS), np.linspace(0.4, 2, ROWS)
    return [make(each) for each in (scores(), a, k, t)]


def all_derivatives(function, leaves):
    """The answer, its gradient in each leaf, and that of a mix of these."""
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    answer = function(*leaves)
    v = like(answer, np.cos(np.arange(answer.numel())).reshape(answer.shape))
    first = torch.autograd.grad((answer * v).sum(), leaves, create_graph=True)
    mixed = sum(each.sin().sum() for each in first)
    second = torch.autograd.grad(mixed, leaves)
    return [plain(each) for each in (answer, *first, *second)]


@pytest.mark.parametrize("way", ["torch", "dtensor", "compiled", "segments", "func", "jax"])
def test_a_toy_operation_goes_through_every_adapter(way, toy_operators, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    wanted = all_derivatives(toy, toy_leaves())
    monkeypatch.delenv("KOFN_KERNELS")
    if way == "dtensor":
        with sharded() as make:
            found = all_derivatives(toy, toy_leaves(make))
    elif way == "compiled":
        compiled = torch.compile(toy, fullgraph=True, backend="aot_eager")
        leaves = [leaf.requires_grad_() for leaf in toy_leaves()]
        answer = compiled(*leaves)
        v = torch.cos(torch.arange(ROWS)).double()
        found = [plain(a) for a in (answer, *torch.autograd.grad((answer * v).sum(), leaves))]
    elif way == "segments":
        ptr = torch.arange(0, ROWS * N + 1, N)

        def flat(x, a, k, t):
            return toy(x.reshape(-1), a.reshape(-1), k, t, over=ptr)

        found = all_derivatives(flat, toy_leaves())
    elif way == "func":
        v = torch.cos(torch.arange(ROWS)).double()
        of = torch.func.grad(lambda *leaves: (toy(*leaves) * v).sum(), argnums=(0, 1, 2, 3))
        found = [plain(toy(*toy_leaves())), *map(plain, of(*toy_leaves()))]
    else:
        v = np.cos(np.arange(ROWS))
        leaves = toy_leaves(jax.numpy.asarray)
        of = jax.jit(jax.grad(lambda *leaves: (toy(*leaves) * v).sum(), argnums=(0, 1, 2, 3)))
        found = [plain(toy(*leaves)), *map(plain, of(*leaves))]
    for one, other in zip(found, wanted, strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)


def test_an_operation_without_a_way_back_has_the_gradient_of_its_array_code():
    x, a = torch.tensor(scores()).requires_grad_(), torch.arange(ROWS * N).reshape(ROWS, N)
    checked = given_for_kernels(x, 2.5, links.logistic, 1.0, -1, None)
    v = torch.linspace(-1, 1, ROWS).double()
    found = [
        torch.autograd.grad((route.answer(operation, checked, a.double().cos()) * v).sum(), x)[0]
        for operation in (dataclasses.replace(TOY, name="", back=()), TOY)
    ]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)
