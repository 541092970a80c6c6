"""A target that no choice can reach: the loss is ∞ and constant, whatever computes the gradient."""

import math
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import kofn
from kofn import losses
from pairs import covering
from support import LINKS


def family(name):
    return lambda z, t, y: kofn.fenchel_young_loss(z, y, link=name, temperature=t, reduction="none")


def of(name, **options):
    function = getattr(losses, name)
    return lambda z, t, y: function(z, y, temperature=t, reduction="none", **options)


def segments(z, t, y):
    kind = torch if isinstance(z, torch.Tensor) else jnp
    ids = kind.asarray(np.zeros(4, np.int64))
    each = losses.segment_topk_loss(
        z, y, segment_ids=ids, num_segments=1, temperature=t, reduction="none"
    )
    return each[0]


GONE, LABEL = -math.inf, 0
ROW, HOT = [GONE, 0.0, 1.0, -0.5], [1.0, 0.0, 0.0, 0.0]
CASES = {
    **{name: (family(name), ROW, HOT) for name in LINKS},
    "several labels": (family("logistic"), ROW, [1.0, 1.0, 0.0, 0.0]),
    "soft": (family("logistic"), ROW, [0.1, 0.6, 0.3, 0.0]),
    "softmax": (of("softmax_loss"), ROW, LABEL),
    "softmax, weights": (of("softmax_loss"), ROW, [0.1, 0.6, 0.3, 0.0]),
    "softmax, smoothed": (of("softmax_loss", label_smoothing=0.2), ROW, LABEL),
    "sparsemax": (of("sparsemax_loss"), ROW, LABEL),
    "entmax": (of("entmax_loss"), ROW, LABEL),
    "entmax, weights": (of("entmax_loss", alpha=1.3), ROW, HOT),
    "entmax, smoothed": (of("entmax_loss", label_smoothing=0.2), ROW, LABEL),
    "top-k": (of("topk_loss"), ROW, LABEL),
    "top-k, smoothed": (of("topk_loss", label_smoothing=0.2), ROW, [1.0, 1.0, 0.0, 0.0]),
    "segments": (segments, ROW, [1.0, 1.0, 0.0, 0.0]),
    "random k": (of("topk_cross_entropy", k=2), ROW, LABEL),
    "sparse softmax": (of("sparse_softmax_loss", k=2), ROW, LABEL),
    "beside +inf": (of("topk_loss"), [math.inf, 0.0, 1.0, -0.5], [0.0, 1.0, 1.0, 0.0]),
    "softmax beside +inf": (of("softmax_loss"), [math.inf, 0.0, 1.0, -0.5], 2),
}


def backward(f, z, t, y, create_graph=False):
    z, t = z.clone().requires_grad_(), t.clone().requires_grad_()
    value = f(z, t, y)
    slopes = torch.autograd.grad(value, (z, t), create_graph=create_graph)
    return value.detach(), *(slope.detach() for slope in slopes)


def compiled(f, z, t, y):
    return backward(torch.compile(f, fullgraph=True, backend="aot_eager"), z, t, y)


def functional(f, z, t, y):
    slopes, value = torch.func.grad_and_value(f, (0, 1))(z, t, y)
    return value, *slopes


def mapped(f, z, t, y):
    of_rows = torch.func.vmap(torch.func.grad_and_value(f, (0, 1)))
    slopes, value = of_rows(z[None], t[None], y[None])
    return value[0], *(slope[0] for slope in slopes)


def forward(f, z, t, y):
    units = torch.eye(len(z), dtype=z.dtype)
    slopes = [torch.func.jvp(lambda z: f(z, t, y), (z,), (unit,))[1] for unit in units]
    value, slope = torch.func.jvp(lambda t: f(z, t, y), (t,), (torch.ones_like(t),))
    return value, torch.stack(slopes), slope


TORCH = {
    "eager": backward,
    "twice": lambda *given: backward(*given, create_graph=True),
    "functional": functional,
    "mapped": mapped,
    "forward": forward,
    "compiled": compiled,
}
JAX = {"eager": lambda f: f, "jit": jax.jit}


def constant(value, in_scores, in_temperature):
    assert float(value) == math.inf
    assert not np.any(np.asarray(in_scores))
    assert float(in_temperature) == 0


@pytest.fixture
def served(request, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", request.param)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


QUICK = {"on": ("exponential", "softmax", "entmax"), "reference": ("softmax",)}


def ways(names, slow):
    """Every two of code, way and case; most that take seconds belong to the full grid."""
    every = [*product(QUICK, names, CASES)]
    kept = covering(
        [row for row in every if not slow(row[1], row[0]) or row[2] in QUICK[row[0]]], 2
    )
    return [pytest.param(*row, marks=() if row in kept else pytest.mark.full) for row in every]


@pytest.mark.parametrize(
    ("served", "way", "case"),
    ways(TORCH, lambda way, code: way == "compiled"),
    indirect=["served"],
)
def test_no_gradient_on_torch(way, case, served):
    f, row, target = CASES[case]
    z = torch.tensor(row, dtype=torch.float64)
    t = torch.tensor(0.7, dtype=torch.float64)
    y = torch.tensor(target, dtype=None if isinstance(target, int) else torch.float64)
    constant(*TORCH[way](f, z, t, y))


@pytest.mark.parametrize(
    ("served", "way", "case"),
    ways(JAX, lambda way, code: (way, code) != ("eager", "on")),
    indirect=["served"],
)
def test_no_gradient_on_jax(case, way, served):
    f, row, target = CASES[case]
    z, t, y = jnp.asarray(row), jnp.asarray(0.7), jnp.asarray(target)
    value, slopes = JAX[way](jax.value_and_grad(f, (0, 1)))(z, t, y)
    constant(value, *slopes)


@pytest.mark.parametrize("name", ["topk_loss", "softmax_loss"])
def test_other_rows_and_losses_that_overflow_keep_theirs(name):
    function = getattr(losses, name)
    z = torch.tensor([ROW, [0.3, 0.0, 1.0, -0.5], [1e38, 0.0, -1e38, 0.0]], requires_grad=True)
    target = torch.tensor([0, 0, 2])
    found = torch.autograd.grad(function(z, target, temperature=0.1).sum(), z)[0]
    assert not found[0].any()
    alone = function(z[1:2], target[1:2], temperature=0.1, reduction="sum") / 3
    torch.testing.assert_close(found[1], torch.autograd.grad(alone, z)[0][1])
    wanted = torch.tensor([10.0, 0.0, -10.0, 0.0]) / 3
    torch.testing.assert_close(found[2], wanted)
