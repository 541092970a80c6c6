"""PyTorch's other machinery: autocast, tensors without memory, copies and saved modules."""

import copy
import io
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import kofn
from kofn import links, losses
from kofn.links.table import TABLE

X = torch.tensor([[2.0, 1.0, 0.5, -1.0], [0.0, 3.0, 0.25, 1.0], [1.0, 1.0, 0.0, -2.0]])

CALLS = {
    "soft_topk": lambda x: kofn.soft_topk(x, 2.5),
    "soft_topk entmax": lambda x: kofn.soft_topk(x, 2, link="entmax"),
    "hard": lambda x: kofn.soft_topk(x, 2, hard=True),
    "log_soft_topk": lambda x: kofn.log_soft_topk(x, 2),
    "threshold": lambda x: kofn.soft_topk_threshold(x, 2),
    "sum": lambda x: kofn.soft_topk_sum(x, 2),
    "hard_topk": lambda x: kofn.hard_topk(x, 2),
    "gates": lambda x: kofn.topk_gates(x, 2)[0],
    "entmax": lambda x: kofn.entmax(x, 1.3),
    "temperature_for": lambda x: kofn.temperature_for(x, 2, gap=0.1),
    "marginals": lambda x: kofn.KSubset(x, 2).marginals(),
    "log_prob": lambda x: kofn.KSubset(x, 2).log_prob(kofn.hard_topk(x, 2)),
    "entropy": lambda x: kofn.KSubset(x, 2).entropy(),
    "sample": lambda x: kofn.KSubset(x, 2).sample((5,)),
    "fenchel_young_loss": lambda x: losses.fenchel_young_loss(x, kofn.hard_topk(x, 1)),
    "topk_loss": lambda x: losses.topk_loss(x, kofn.hard_topk(x, 1)),
    "entmax_loss": lambda x: losses.entmax_loss(x, torch.zeros_like(x[:, 0], dtype=torch.int64)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_autocast_changes_no_answer(name, dtype):
    """The scores' dtype is the answer's: no operation of kofn is one that autocast lowers.

    Gates of half-precision scores are float32, the same numbers before they are rounded.
    """
    x = X.to(dtype)
    torch.manual_seed(0)
    expected = CALLS[name](x)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        answer = CALLS[name](x)
    raised = name == "gates" and dtype == torch.bfloat16
    assert answer.dtype == (torch.float32 if raised else expected.dtype)
    assert torch.equal(answer.to(dtype) if raised else answer, expected)


def test_lowered_scores_of_an_autocast_model_get_gradients():
    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        scores = layer(X)
        weights = kofn.soft_topk(scores, 2)
    assert scores.dtype == weights.dtype == torch.bfloat16
    (weights * X).sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    assert layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "name",
    # On them the search for a temperature is some sixty maps, operation by operation.
    [pytest.param(n, marks=pytest.mark.full) if n == "temperature_for" else n for n in CALLS],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tensors_without_memory_have_the_shape_and_dtype_of_the_answer(name, dtype):
    expected = CALLS[name](X.to(dtype))
    with FakeTensorMode():
        fakes = CALLS[name](torch.empty(3, 4, dtype=dtype))
    for answer in (fakes, CALLS[name](torch.empty(3, 4, dtype=dtype, device="meta"))):
        assert answer.shape == expected.shape
        assert answer.dtype == expected.dtype
    assert answer.device.type == "meta"


def test_torch_func_maps_the_operator_and_refuses_to_differentiate_it():
    """Derivatives come from implicit.py; through the operator itself there is none."""
    arguments = (torch.full((3,), 2.0), torch.ones(3), None, links.logistic.id, None)

    def through(x):
        return torch.ops.kofn.threshold(x, *arguments)[0].sum()

    with pytest.raises(RuntimeError, match=r"(?i)kofn::threshold|autograd"):
        grad(through)(X)
    whole = torch.ops.kofn.threshold(X, *arguments)
    rows = vmap(lambda x, k: torch.ops.kofn.threshold(x, k, *(torch.ones(()), *arguments[2:])))
    for ours, theirs in zip(rows(X, arguments[0]), whole, strict=True):
        assert torch.equal(ours, theirs)


class Chooser(torch.nn.Module):
    def __init__(self, link):
        super().__init__()
        self.link = link
        self.scores = torch.nn.Linear(4, 4)

    def forward(self, x):
        return kofn.soft_topk(self.scores(x), 2, link=self.link)


def cdf(z):
    return 0.5 + torch.arctan(z) / math.pi


def pdf(z):
    return 1 / (math.pi * (1 + z * z))


OWN = kofn.Link(cdf, pdf)
LINKS = [*TABLE.values(), links.entmax(1.3), links.entmax(torch.tensor(1.7)), OWN]


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_a_module_with_a_link_is_copied_and_saved(link):
    module, file = Chooser(link), io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for other in (copy.deepcopy(module), torch.load(file, weights_only=False)):
        assert torch.equal(other(X), module(X))
        assert torch.equal(vmap(other)(X[:, None]), vmap(module)(X[:, None]))  # by the operator


IDS = torch.tensor([2, 0, 0, 2, 1, 2, 0, 2])
ROW = torch.tensor([2.0, 1.0, 0.5, -1.0, 0.0, 3.0, 0.25, 1.0])
SEGMENTS = {
    "soft_topk": lambda x, ids: kofn.segment_soft_topk(x, 1.5, segment_ids=ids),
    "ratio": lambda x, ids: kofn.segment_soft_topk(x, ratio=0.5, segment_ids=ids),
    "threshold": lambda x, ids: kofn.segment_soft_topk_threshold(x, 0.5, segment_ids=ids),
    "sum": lambda x, ids: kofn.segment_soft_topk_sum(x, 1.5, segment_ids=ids),
    "softmax": lambda x, ids: kofn.segment_softmax(x, segment_ids=ids),
    "sparsemax": lambda x, ids: kofn.segment_sparsemax(x, segment_ids=ids),
    "entmax": lambda x, ids: kofn.segment_entmax(x, 1.3, segment_ids=ids),
    "hard_topk": lambda x, ids: kofn.segment_hard_topk(x, 2, segment_ids=ids),
    "topk_loss": lambda x, ids: losses.segment_topk_loss(x, (x > 0.9).float(), segment_ids=ids),
}


class Watched(TorchDispatchMode):
    """What sees every operation and changes none."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def selective(function, x):
    """function(x) whose operations a policy keeps or recomputes, one by one."""

    def contexts():
        keep = [torch.ops.aten.exp.default]
        return checkpoint.create_selective_checkpoint_contexts(keep)

    return checkpoint.checkpoint(function, x, use_reentrant=False, context_fn=contexts)


@pytest.mark.parametrize("name", SEGMENTS)
def test_what_watches_operations_does_not_hide_how_many_segments_there_are(name):
    function = SEGMENTS[name]
    expected = function(ROW, IDS)
    for mode in (Watched(), FlopCounterMode(display=False)):
        with mode:
            answer = function(ROW, IDS)
        torch.testing.assert_close(answer, expected, atol=1e-6, rtol=1e-6)
    if name == "hard_topk":
        return
    slopes = []
    for run in (selective, lambda function, x: function(x)):
        x = ROW.double().requires_grad_()
        run(lambda x: function(x, IDS), x).square().sum().backward()
        slopes.append(x.grad)
    torch.testing.assert_close(*slopes)
    # The transforms do not map over the ids.
    each = vmap(lambda x: function(x, IDS))(torch.stack([ROW, -ROW]))
    torch.testing.assert_close(each[0], expected, atol=1e-6, rtol=1e-6)
    moved = jvp(lambda x: function(x, IDS), (ROW.double(),), (torch.ones(8).double(),))[0]
    torch.testing.assert_close(moved.float(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", SEGMENTS)
def test_where_ids_are_unknown_the_number_of_segments_is_missing_by_name(name):
    def function(ids):
        return SEGMENTS[name](ROW.to(ids.device), ids)

    def fake():
        with FakeTensorMode() as mode:
            return SEGMENTS[name](mode.from_tensor(ROW), mode.from_tensor(IDS))

    for call in (
        lambda: torch.jit.trace(function, IDS),
        lambda: make_fx(function)(IDS),
        lambda: vmap(function)(IDS[None]),
        lambda: function(IDS.to("meta")),
        fake,
    ):
        with pytest.raises(ValueError, match="num_segments must be given where segment_ids are"):
            call()
