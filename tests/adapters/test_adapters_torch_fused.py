"""Functions under torch.compile: the kernels' own answers, every derivative right or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jvp, vmap

import kofn
from kofn import losses
from support import LINKS

OPERATORS = (
    "kofn.weights",
    "kofn.value",
    "kofn.located",
    "kofn.hard",
    "kofn.log_weights",
    "kofn.gap",
    "kofn.largest",
    "kofn.truncated",
    "kofn.subset_",
    "kofn.noisy_",
)


def full(*names):
    return [pytest.param(name, marks=pytest.mark.full) for name in names]


pytestmark = pytest.mark.usefixtures("kernels_on")


@pytest.fixture(autouse=True)
def _forget():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, by="aot_eager", **options):
    """The compiled function, whose `graphs` are the code of what it has been compiled to."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.print_readable(print_output=False))
        return torch._dynamo.lookup_backend(by)(graph, inputs)

    made = torch.compile(function, fullgraph=True, backend=backend, **options)
    made.graphs = graphs
    return made


def called(function, *arguments) -> str:
    """Return the operators in the graph of a function."""
    function = compiled(function, by="eager")
    function(*arguments)
    return "".join(function.graphs)


def compared(function, *leaves):
    """Pairs of what eager code and the compiled function answer, with gradients; its graphs."""
    made = compiled(function)
    pairs = zip(gradients(function, *leaves), gradients(made, *leaves), strict=True)
    return list(pairs), "".join(made.graphs)


def same_bits(function, *leaves) -> str:
    """Compare them, and return the graphs."""
    pairs, graphs = compared(function, *leaves)
    for eager, found in pairs:
        assert found.dtype == eager.dtype
        assert torch.equal(found, eager)
    return graphs


def scores(*shape, dtype=torch.float64):
    rng = np.random.default_rng(0)
    return torch.tensor(rng.standard_normal(shape) * 2, dtype=dtype)


def topk(link="logistic", k=2.5, temperature=0.7):
    return lambda x: kofn.soft_topk(x, k, link=link, temperature=temperature)


def total(x):
    return kofn.soft_topk_sum(x, 2.5, temperature=0.7)


def gradients(function, *leaves):
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    y = function(*leaves)
    v = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    return [y.detach(), *torch.autograd.grad(y, leaves, v)]


@pytest.mark.parametrize("dtype", [torch.float32, *full(torch.float64)])
@pytest.mark.parametrize("link", [*LINKS, kofn.links.entmax(1.3)], ids=str)
def test_weights_and_gradients_are_those_of_eager_code_to_the_bit(link, dtype):
    def weights(x, k, t):
        return kofn.soft_topk(x, k, link=link, temperature=t)

    x = scores(4, 9, dtype=dtype)
    k, t = (torch.tensor(a, dtype=dtype) for a in ([1.0, 2.5, 3, 4], [0.1, 1, 2, 0.5]))
    assert "kofn.weights" in same_bits(weights, x, k, t)


@pytest.mark.parametrize("k", [3.0, *full(1.0, 4.0)])
def test_the_smoothed_sum_is_that_of_eager_code(k):
    def sums(x, k, t):
        return kofn.soft_topk_sum(x, k, temperature=t)

    x = scores(3, 4)
    x[0, 1] = torch.inf
    given = x, torch.tensor([k] * 3, dtype=x.dtype), torch.tensor([0.3, 1, 2], dtype=x.dtype)
    assert "kofn.value" in same_bits(sums, *given)


def test_masks_dimensions_half_types_and_hard_choices_go_the_same_way():
    x, mask = scores(5, 6), scores(5, 6) > -1

    def f(x):
        return kofn.soft_topk(x, 2, dim=0, mask=mask, hard=True)

    def half(x):
        return kofn.soft_topk(x.to(torch.bfloat16), 2)

    for function in (f, half, lambda x: kofn.entmax(x, 1.4), lambda x: kofn.soft_topk(x.T, 2)):
        assert f"kofn.{'hard' if function is f else 'weights'}" in same_bits(function, x)


def hard(x, k, temperature):
    return kofn.soft_topk(x, k, temperature=temperature, hard=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, *full(torch.float16)])
@pytest.mark.parametrize("function", [kofn.soft_topk, *full(kofn.log_soft_topk, hard)])
def test_half_precision_goes_to_the_operators_as_it_is(function, dtype):
    def of(x, t):
        return function(x, 2, temperature=t)

    leaves = scores(3, 40).to(dtype), torch.tensor([0.5, 1.0, 2.0])
    assert "f32[3, 40]" not in same_bits(of, *leaves)


@pytest.mark.parametrize("dtype", [torch.bfloat16, *full(torch.float16)])
@pytest.mark.parametrize("loss", [losses.softmax_loss, *full(losses.topk_loss)])
def test_losses_of_half_precision_are_those_of_eager_code(loss, dtype):
    labels = torch.tensor([3, 0, 39])

    def of(x, t):
        return loss(x, labels, temperature=t, reduction="none")

    leaves = scores(3, 40).to(dtype), torch.tensor([0.5, 1.0, 2.0])
    for eager, found in compared(of, *leaves)[0]:
        assert found.dtype == eager.dtype
        torch.testing.assert_close(found, eager, rtol=2e-6 if found.ndim < 2 else 0, atol=0)


def test_shapes_may_change():
    function = compiled(topk(), dynamic=True)
    for shape in ((2, 7), (5, 11), (1, 4), (3, 2, 6)):
        for got, wanted in zip(
            gradients(function, scores(*shape)), gradients(topk(), scores(*shape)), strict=True
        ):
            assert torch.equal(got, wanted)


HOT = torch.zeros(4, 9, dtype=torch.float64)
HOT[:, :2], HOT[3] = 1, 0
LABELS, IGNORED = torch.tensor([2, 0, 8, 5]), torch.tensor([2, -100, 8, 5])
OTHERS = {
    "softmax": ("weights", lambda x: kofn.softmax(x, temperature=0.7)),
    "sparse_softmax": ("truncated", lambda x: kofn.sparse_softmax(x, k=3)),
    "sparse_softmax_loss": (
        "truncated_loss",
        lambda x: losses.sparse_softmax_loss(x, LABELS, p=0.8, reduction="none"),
    ),
    "threshold": (
        "located",
        lambda x: kofn.soft_topk_threshold(x, 2.5, link="normal", temperature=0.7),
    ),
    "hard": ("hard_weights", lambda x: kofn.soft_topk(x, 2.5, hard=True)),
    "gates": ("largest", lambda x: kofn.topk_gates(x, 2)[0]),
    "log_soft_topk": ("log_weights", lambda x: kofn.log_soft_topk(x, 2.5, temperature=0.7)),
    "log_entmax": ("log_weights", lambda x: kofn.log_entmax(x, 1.5)),
    "topk_loss": ("gap", lambda x: losses.topk_loss(x, HOT, reduction="none")),
    "fenchel_young": ("gap", lambda x: kofn.fenchel_young_loss(x, HOT, temperature=0.7)),
    "sparsemax_loss": ("gap", lambda x: losses.sparsemax_loss(x, LABELS, reduction="none")),
    "entmax_loss": ("gap", lambda x: losses.entmax_loss(x, IGNORED, reduction="none")),
    "softmax_loss": ("truncated_loss", lambda x: losses.softmax_loss(x, IGNORED, reduction="none")),
    "marginals": ("subset_marginals", lambda x: kofn.KSubset(x, 2).marginals()),
    "variance": ("subset_tails", lambda x: kofn.KSubset(x, 2).variance),
    "log_prob": ("subset_log_count", lambda x: kofn.KSubset(x, 2).log_prob(HOT)),
    "entropy": ("subset_log_count", lambda x: kofn.KSubset(x, 2).entropy()),
    "perturbed": ("noisy_argmax", lambda x: kofn.perturbed_argmax(x, noise="laplace")),
    "topk_cross_entropy": ("log_weights", lambda x: losses.topk_cross_entropy(x, LABELS, 2)),
}


FULL = (
    *("softmax", "threshold", "variance", "log_prob", "log_entmax", "fenchel_young", "topk_loss"),
    *("sparsemax_loss", "entmax_loss", "topk_cross_entropy", "sparse_softmax_loss", "entropy"),
    *("log_soft_topk", "softmax_loss"),  # below, with a learned temperature
)


@pytest.mark.parametrize("name", [*(name for name in OTHERS if name not in FULL), *full(*FULL)])
def test_other_functions_call_the_kernels_with_the_same_bits(name):
    operator, function = OTHERS[name]
    x = scores(4, 9)
    x[0, 1], x[1, 2] = torch.inf, -torch.inf
    pairs, graphs = compared(function, x)
    assert f"kofn.{operator}" in graphs
    for eager, found in pairs:
        assert torch.equal(found.nan_to_num(7), eager.nan_to_num(7))
    assert torch.equal(compiled(function)(x).nan_to_num(7), function(x).nan_to_num(7))


@pytest.mark.parametrize("name", ["log_soft_topk", "softmax_loss", *full("topk_loss", "hard")])
def test_a_learned_temperature_has_the_same_bits(name):
    function = {
        "log_soft_topk": lambda x, t: kofn.log_soft_topk(x, 2, temperature=t),
        "softmax_loss": lambda x, t: losses.softmax_loss(x, LABELS, temperature=t),
        "topk_loss": lambda x, t: losses.topk_loss(x, HOT, temperature=t),
        "hard": lambda x, t: kofn.soft_topk(x, 2, temperature=t, hard=True),
    }[name]
    given = scores(4, 9), torch.tensor([0.1, 1, 2, 0.5], dtype=torch.float64)
    assert f"kofn.{OTHERS[name][0]}" in same_bits(function, *given)


def test_choices_without_a_gradient_call_the_kernels():
    def both(x):
        return kofn.hard_topk(x, 2.5), kofn.topk_gates(x, 2)[1]

    x = scores(4, 9)
    assert all(f"kofn.{name}" in called(both, x) for name in ("hard", "largest"))
    for got, wanted in zip(compiled(both)(x), both(x), strict=True):
        assert torch.equal(got, wanted)


def test_a_label_out_of_range_is_nan_and_an_ignored_one_0():
    def rows(x, labels):
        return torch.stack(
            [loss(x, labels, reduction="none") for loss in (losses.softmax_loss, losses.topk_loss)]
        )

    x, labels = scores(3, 5), torch.tensor([1, 5, -100])
    assert "kofn.gap" in called(rows, x, labels)
    found = compiled(rows)(x, labels)
    assert torch.equal(found[:, 0], rows(x[:1], labels[:1])[:, 0])
    assert found[:, 1].isnan().all()
    assert (found[:, 2] == 0).all()


TRANSFORMED = {
    "func.grad": lambda f: grad(lambda x: (f(x) ** 2).sum()),
    "func.jvp": lambda f: lambda x: jvp(f, (x,), (x + 1,))[1],
    "vmap(grad)": lambda f: vmap(grad(lambda x: (f(x) ** 2).sum())),
    "vmap": lambda f: vmap(f),
    "jacfwd": lambda f: jacfwd(lambda x: f(x[0])),
    "hessian": lambda f: hessian(lambda x: (f(x[0]) ** 2).sum()),
}

ORDINARY = {("func.grad", "weights"), ("func.jvp", "log")}  # each catches another slip
FUNCTIONS = {
    "weights": topk(),
    "sum": total,
    "threshold": lambda x: kofn.soft_topk_threshold(x, 2.5, temperature=0.7),
    "log": lambda x: kofn.log_soft_topk(x, 2.5, temperature=0.7),
    "loss": lambda x: losses.softmax_loss(
        x, torch.zeros(x.shape[:-1], dtype=torch.int64), reduction="none"
    ),
    "topk_loss": lambda x: losses.topk_loss(x, torch.ones_like(x) / 2, reduction="none"),
    "hard": lambda x: kofn.soft_topk(x, 2.5, hard=True),
    "gates": lambda x: kofn.topk_gates(x, 2)[0],
    "marginals": lambda x: kofn.KSubset(x, 2).marginals(),
    "entropy": lambda x: kofn.KSubset(x, 2).entropy(),
    "perturbed": lambda x: kofn.perturbed_argmax(x, noise="normal"),
    "alphas": lambda x: kofn.entmax(x, torch.full_like(x[..., 0], 1.3)),
}


@pytest.mark.parametrize(
    ("how", "f"),
    [
        pytest.param(how, f, marks=() if (how, f) in ORDINARY else pytest.mark.full)
        for how in TRANSFORMED
        for f in FUNCTIONS
    ],
)
def test_transforms_inside_see_the_plain_operations(f, how):
    function, x = TRANSFORMED[how](FUNCTIONS[f]), scores(2, 6)
    made = compiled(function, by="eager")
    assert torch.allclose(made(x), function(x), atol=1e-10)
    assert not any(name in "".join(made.graphs) for name in OPERATORS)


@pytest.mark.parametrize("f", ["weights", *full(*(f for f in FUNCTIONS if f != "weights"))])
def test_dual_numbers_keep_their_tangent(f):
    """Also in a function that was compiled for ordinary numbers before."""
    f = FUNCTIONS[f]
    x, v = scores(2, 6), scores(2, 6) + 1
    function = compiled(f)
    assert torch.equal(function(x), f(x))

    def pushed(g):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(g(forward_ad.make_dual(x, v))).tangent

    assert torch.allclose(pushed(function), pushed(f), atol=1e-10)
    assert torch.equal(function(x), f(x))


def test_transforms_of_a_compiled_function_see_the_plain_operations():
    """Also where it was compiled for ordinary tensors before."""

    def loss(x):
        return topk()(x).square().sum()

    x, function = scores(2, 6), torch.compile(loss, backend="aot_eager")
    assert torch.equal(function(x), loss(x))
    for transform in (grad, lambda f: vmap(grad(f)), lambda f: grad(lambda x: grad(f)(x).sum())):
        assert torch.allclose(transform(function)(x), transform(loss)(x), atol=1e-10)


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
@pytest.mark.parametrize(
    "f",
    [
        "weights",
        "sum",
        "log",
        "loss",
        *full("threshold", "marginals", "entropy", "perturbed", "topk_loss", "hard", "gates"),
    ],
)
def test_a_second_derivative_through_compiled_code_is_refused(f, backend):
    x = scores(2, 6).requires_grad_()
    function = torch.compile(FUNCTIONS[f], fullgraph=True, backend=backend)
    (first,) = torch.autograd.grad((function(x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"second derivative|double backward"):
        torch.autograd.grad(first.square().sum(), x)


def test_exported_programs_keep_the_threshold_operator():
    class Model(torch.nn.Module):
        def forward(self, x):
            return kofn.soft_topk(x, 2)

    program = torch.export.export(Model(), (scores(2, 5),))
    names = {str(node.target) for node in program.graph.nodes}
    assert "kofn.threshold.default" in names
    assert not any(name in target for target in names for name in OPERATORS)


@pytest.mark.parametrize(
    "function",
    [
        topk(),
        pytest.param(lambda x: losses.topk_loss(x, x > 0), marks=pytest.mark.full),
        pytest.param(lambda x: kofn.topk_gates(x, 2)[0], marks=pytest.mark.full),
        pytest.param(lambda x: kofn.KSubset(x, 2).marginals(), marks=pytest.mark.full),
    ],
    ids=["soft_topk", "topk_loss", "topk_gates", "marginals"],
)
def test_a_call_checks_nothing_of_kofn_but_the_level_of_forward_mode(function):
    seen = []

    def keep(checks):
        seen.extend(check.name for check in checks)
        return [True] * len(checks)

    torch.compile(function, backend="eager", options={"guard_filter_fn": keep})(scores(2, 5))
    ours = [name for name in seen if "__import_kofn" in name]
    assert ours  # else the names of such checks have changed
    assert all("forward_ad" in name for name in ours)


def test_without_kernels_the_plain_operations_are_compiled(monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    graph = called(topk(), scores(2, 5))
    assert "kofn.threshold" in graph
    assert "kofn.weights" not in graph


@pytest.mark.parametrize("alphas", [(1.2, 1.5, 2.0), *full((1.3, 3.0, 1.1), (1.5, np.nan, 1.9))])
@pytest.mark.parametrize("case", ["entmax", "log", "loss", *full("temperature", "k", "soft loss")])
def test_a_learned_alpha_goes_to_an_operator_that_asks_for_its_values(alphas, case):
    target = scores(2, 3, 7).softmax(-1) if case == "soft loss" else torch.tensor([[0, 6, 1]] * 2)

    def learned(x, alpha):
        link = kofn.links.entmax(alpha)
        if case == "entmax":
            return kofn.entmax(x, alpha)
        if case == "log":
            return torch.where(kofn.entmax(x, alpha) > 0, kofn.log_entmax(x, alpha), 0.0)
        if case.endswith("loss"):
            return losses.entmax_loss(x, target, alpha, temperature=alpha, reduction="none")
        if case == "temperature":
            return kofn.soft_topk(x, 2.5, link=link, temperature=alpha)
        return kofn.soft_topk(x, alpha + 1, link=link, temperature=0.7)

    leaves = scores(2, 3, 7), torch.tensor(alphas, dtype=torch.float64)
    name = {"log": "log_weights", "loss": "gap", "soft loss": "gap"}.get(case, "weights")
    pairs, graphs = compared(learned, *leaves)
    assert f"kofn.{name}_each_alpha" in graphs
    for eager, found in pairs:
        torch.testing.assert_close(found, eager, rtol=1e-10, atol=1e-12, equal_nan=True)


@pytest.mark.full
def test_links_of_ones_own_are_compiled_as_plain_operations():
    cauchy = kofn.Link(
        cdf=lambda z: 0.5 + torch.atan(z) / torch.pi, pdf=lambda z: 1 / (torch.pi * (1 + z * z))
    )
    graph = called(lambda x: kofn.soft_topk(x, 2.5, link=cauchy), scores(2, 5))
    assert not any(name in graph for name in OPERATORS)


class Entmax(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = 1.5

    def forward(self, x):
        return kofn.entmax(x, self.alpha)


@pytest.mark.full
def test_a_float_of_a_module_is_an_alpha_where_shapes_are_dynamic():
    module, x = Entmax(), scores(2, 5)
    found = compiled(module, dynamic=True)
    for alpha in (1.5, 1.3, 2.0):
        module.alpha = alpha
        assert torch.equal(found(x), kofn.entmax(x, alpha))


def test_rows_a_kernel_gives_up_on_are_finished():
    x = torch.tensor([[4.6, 1e15, 0.0], [1.0, -1e9, -1e30]])

    def f(x):
        return kofn.soft_topk(x, 1.047, link="laplace")

    assert torch.equal(compiled(f)(x), f(x))


def test_gradients_of_logarithms_that_a_kernel_gives_up_on_are_finished():
    """By code that needs autograd, which PyTorch turns off inside of an operator."""
    x = torch.tensor([[1e4, 0.5, 0.0, -1e4], [1.0, 2.0, 3.0, 4.0]])

    def f(x):
        return kofn.log_soft_topk(x, 1, temperature=torch.ones(2))

    for got, wanted in zip(gradients(compiled(f), x), gradients(f, x), strict=True):
        assert torch.equal(got, wanted)
        assert torch.isfinite(got).all()


@pytest.mark.full
def test_inductor_and_the_derivative_of_a_model():
    model = torch.nn.Linear(6, 8, dtype=torch.float64)

    def loss(x):
        return (kofn.soft_topk(model(x), 2) * x.sum()).square().sum()

    x = scores(3, 6)
    loss(x).backward()
    wanted = model.weight.grad.clone()
    model.zero_grad()
    torch.compile(loss, fullgraph=True)(x).backward()
    assert torch.allclose(model.weight.grad, wanted, rtol=1e-5, atol=1e-6)
