"""torch.jit.trace: what was recorded on one batch is right on others, and after saving."""

import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import kofn
from kofn import classic, losses, metrics
from kofn.links import table
from support import LINKS

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)

RNG = np.random.default_rng(5)


def normal(*shape):
    return torch.tensor(2 * RNG.standard_normal(shape), dtype=torch.float32)


TRACED = normal(3, 6)
OTHERS = [normal(3, 6), normal(5, 6), normal(1, 6), normal(4, 11)]


def hot(x):
    return kofn.hard_topk(x.roll(1, -1), 2)


def first(x):
    return torch.zeros_like(x[:, 0]).long()


def subset(x):
    return kofn.KSubset(x, 2)


FUNCTIONS = {
    **{f"soft_topk {n}": lambda x, n=n: kofn.soft_topk(x, 2.5, link=n) for n in LINKS},
    "hard": lambda x: kofn.soft_topk(x, 2, hard=True),
    "mask": lambda x: kofn.soft_topk(x, 2, mask=x > -1),
    "dim": lambda x: kofn.soft_topk(x.mT, 2, dim=0),
    "half": lambda x: kofn.soft_topk(x.half(), 2),
    "double": lambda x: kofn.soft_topk(x.double(), 2),
    "k per row": lambda x: kofn.soft_topk(x, x[:, 0].abs().clip(max=5)),
    "temperature per row": lambda x: kofn.soft_topk(x, 2, temperature=x[:, 0].abs() + 0.1),
    "threshold": lambda x: kofn.soft_topk_threshold(x, 2),
    "sum": lambda x: kofn.soft_topk_sum(x, 2),
    "gates": lambda x: kofn.topk_gates(x, 2)[0],
    "indices": lambda x: kofn.topk_gates(x, 2)[1],
    "hard_topk": lambda x: kofn.hard_topk(x, 2.5),
    "softmax": kofn.softmax,
    "sparsemax": kofn.sparsemax,
    "entmax": lambda x: kofn.entmax(x, 1.3),
    "alpha per row": lambda x: kofn.entmax(x, 1 + x[:, 0].abs()),
    "sparse_softmax k": lambda x: kofn.sparse_softmax(x, k=3),
    "sparse_softmax p": lambda x: kofn.sparse_softmax(x, p=0.7),
    "taylor": kofn.taylor_softmax,
    "perturbed normal": kofn.perturbed_argmax,
    "perturbed laplace": lambda x: kofn.perturbed_argmax(x, noise="laplace"),
    "log_soft_topk": lambda x: kofn.log_soft_topk(x, 2),
    "log_entmax": lambda x: kofn.log_entmax(x, 1.5).exp(),
    "temperature_for": lambda x: kofn.temperature_for(x, 2, gap=0.3),
    "temperature_for rows": lambda x: kofn.temperature_for(x, 2, support=2.5, per_row=True),
    "fenchel_young_loss": lambda x: losses.fenchel_young_loss(x, hot(x)),
    "topk_loss": lambda x: losses.topk_loss(x, hot(x)),
    **{
        name: lambda x, name=name, more=more: getattr(losses, name)(x, first(x), **more)
        for name, more in {
            "softmax_loss": {"label_smoothing": 0.1},
            "sparsemax_loss": {},
            "entmax_loss": {},
            "sparse_softmax_loss": {"k": 3},
            "topk_cross_entropy": {"k": 2},
            "epsilon_cross_entropy": {},
            "accuracy_loss": {},
            "perturbed_accuracy_loss": {},
        }.items()
    },
    "am_softmax": lambda x: losses.am_softmax(x.tanh(), first(x))[0],
    "arcface": lambda x: losses.arcface(x.tanh(), first(x))[0],
    "iterative_soft_topk": lambda x: classic.iterative_soft_topk(x, 2),
    "ones_and_softmax": lambda x: classic.ones_and_softmax(x, 2),
    "weighted_soft_topk": lambda x: classic.weighted_soft_topk(x, 2),
    "effective_support": lambda x: metrics.effective_support(x.softmax(-1)),
    "hard_gap": lambda x: metrics.hard_gap(kofn.soft_topk(x, 2), 2),
    "jacobian_norm": lambda x: metrics.jacobian_norm(x, 2),
    "order_violations": lambda x: metrics.order_violations(x, x.roll(1, -1)),
    "marginals": lambda x: subset(x).marginals(),
    "log_partition": lambda x: subset(x).log_partition(),
    "subset log_prob": lambda x: subset(x).log_prob(hot(x)),
    "subset entropy": lambda x: subset(x).entropy(),
    "subset kl": lambda x: subset(x).kl(subset(x.roll(1, -1))),
    "subset mode": lambda x: subset(x).mode(),
    "covariance": lambda x: subset(x).covariance_vector_product(x.roll(1, -1)),
    "plackett_luce log_prob": lambda x: kofn.PlackettLuce(x).log_prob(x.argsort(-1)[:, :2]),
    "categorical entropy": lambda x: kofn.Categorical(x).entropy(),
    "bernoulli entropy": lambda x: kofn.Bernoulli(x).entropy(),
    "normal log_prob": lambda x: kofn.Normal(x, x.exp()).log_prob(x.roll(1, -1)),
    "relaxed log_prob": lambda x: kofn.RelaxedOneHot(x, 0.5).log_prob(x.roll(1, -1).softmax(-1)),
}


def trace(function, x=TRACED):
    return torch.jit.trace(function, (x,), check_trace=False)


def close(a, b):
    # Values of the eager kernels and of the recorded operations: to rounding of float32.
    return torch.allclose(a.double(), b.double(), atol=2e-6, rtol=2e-6)


# One of each backend through the code; the rest is the full run.
ORDINARY = (
    *("soft_topk logistic", "soft_topk entmax", "hard", "k per row", "gates", "alpha per row"),
    *(
        "ones_and_softmax",
        "fenchel_young_loss",
        "topk_cross_entropy",
        "marginals",
        "subset log_prob",
    ),
)


def some(names, ordinary):
    return [n if n in ordinary else pytest.param(n, marks=pytest.mark.full) for n in names]


@pytest.mark.parametrize("name", some(FUNCTIONS, ORDINARY))
def test_a_trace_is_right_on_other_batches(name):
    function = FUNCTIONS[name]
    traced = trace(function)
    for x in OTHERS:
        assert close(traced(x), function(x))


@pytest.mark.parametrize(
    "name", some(["soft_topk logistic", "soft_topk linear", "sum", "log_soft_topk"], ["sum"])
)
def test_a_trace_has_the_gradient_too(name):
    function = FUNCTIONS[name]
    traced = trace(function)
    for x in OTHERS:
        v = torch.randn_like(function(x))
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        (ours,) = torch.autograd.grad(traced(ours), ours, v)
        (theirs,) = torch.autograd.grad(function(theirs), theirs, v)
        assert close(ours, theirs)


@pytest.mark.parametrize("edge", [-math.inf, math.inf, math.nan, 1e30, torch.finfo().min])
def test_a_trace_keeps_the_edges(edge):
    traced = trace(lambda x: kofn.soft_topk(x, 2))
    x = OTHERS[1].clone()
    x[1, 2] = edge
    assert torch.allclose(traced(x), kofn.soft_topk(x, 2), atol=2e-6, equal_nan=True)


def test_a_traced_sample_is_drawn_anew_and_from_the_same_law():
    generator = torch.Generator().manual_seed(0)
    traced = trace(lambda x: kofn.KSubset(x, 2).sample((500,), generator))
    x = OTHERS[1]
    torch.manual_seed(0)
    draws = torch.cat([traced(x) for _ in range(4)])
    assert not torch.equal(draws[:500], draws[500:1000])
    assert (draws.sum(-1) == 2).all()
    assert torch.allclose(draws.mean(0), kofn.KSubset(x, 2).marginals(), atol=0.05)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: kofn.KSubset(x, 2).support(1),
        lambda x: kofn.KSubset.from_marginals(kofn.KSubset(x, 2).marginals()).logits,
    ],
)
def test_what_cannot_be_recorded_is_refused(function):
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace"):
        trace(function)


class Router(torch.nn.Module):
    """A module as users export it."""

    def __init__(self):
        super().__init__()
        self.scores = torch.nn.Linear(4, 6)

    def forward(self, x):
        gates, indices = kofn.topk_gates(self.scores(x), 2)
        return gates, indices, kofn.entmax(self.scores(x), 1.3)


LOAD = """
    import warnings
    warnings.filterwarnings("ignore", "`torch.jit.", DeprecationWarning)
    import kofn
    import torch

    module = torch.jit.load({path!r})
    x = torch.arange(20.0).reshape(5, 4).sin()
    torch.save(module(x), {answer!r})
    operator = kofn.adapters.torch.threshold.threshold
    assert isinstance(operator, torch._library.custom_ops.CustomOpDef)
"""


@pytest.mark.full
def test_a_saved_trace_runs_in_a_process_that_imports_kofn(tmp_path):
    torch.manual_seed(0)
    path, answer = str(tmp_path / "router.pt"), str(tmp_path / "answer.pt")
    router = Router()
    torch.jit.trace(router, (torch.randn(3, 4),)).save(path)
    code = textwrap.dedent(LOAD.format(path=path, answer=answer))
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)
    expected = router(torch.arange(20.0).reshape(5, 4).sin())
    assert all(map(close, torch.load(answer), expected))


def test_a_link_of_ones_own_is_not_mistaken_for_another():
    link = kofn.Link(torch.sigmoid, lambda z: torch.sigmoid(z) * torch.sigmoid(-z))
    x, k = torch.randn(3, 6), torch.full((3,), 2.0)
    kofn.soft_topk(x, 2, link=link)
    arguments = (x, k, torch.ones(3), None)
    assert torch.ops.kofn.threshold(*arguments, link.id, None)[0].isfinite().all()
    for built_in in table.TABLE.values():
        assert built_in.id == built_in.name  # saved programs hold it
    with pytest.raises(RuntimeError, match="exist only in the process that made them"):
        torch.ops.kofn.threshold(*arguments, link.id + "x", None)


def test_symbolic_trace_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match=r"scores is a torch\.fx\.Proxy.*torch\.fx\.wrap"):
        torch.fx.symbolic_trace(lambda x: kofn.soft_topk(x, 2))
    with pytest.raises(TypeError, match=r"logits is a torch\.fx\.Proxy"):
        torch.fx.symbolic_trace(lambda x: kofn.KSubset(x, 2).marginals())


def route(x):
    return kofn.soft_topk(x, 2)


torch.fx.wrap("route")


def test_a_wrapped_call_passes_symbolic_trace():
    x = OTHERS[0]
    assert torch.equal(torch.fx.symbolic_trace(lambda x: 2 * route(x))(x), 2 * route(x))
