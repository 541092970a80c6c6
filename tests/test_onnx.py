"""torch.onnx.export: the exported model meets the eager one in onnxruntime, at another batch."""

import re
from typing import ClassVar

import numpy as np
import pytest
import torch

import kofn
import own_links
from calls import CALLS, surroundings
from kofn.arrays.torch import operator as torch_operator
from kofn.arrays.without_onnx import WITHOUT_ONNX, without_onnx
from kofn.links import table
from places import ROOT
from support import LINKS

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
kofn_onnx = pytest.importorskip("kofn.onnx")

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
RNG = np.random.default_rng(7)


class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def exported(function, x, dynamic=True, lengths=False, optimize=False):
    rows = {0: torch.export.Dim("rows", min=2, max=4096)}
    if lengths:
        rows[1] = torch.export.Dim("length", min=4, max=4096)
    return torch.onnx.export(
        Of(function).eval(),
        (x,),
        dynamo=True,
        dynamic_shapes=(rows,) if dynamic else None,
        custom_translation_table=kofn_onnx.translations(),
        optimize=optimize,
        verbose=False,
    )


def run(program, x):
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})


def normal(*shape, scale=2.0):
    return torch.tensor(scale * RNG.standard_normal(shape), dtype=torch.float32)


def rows():
    """Ordinary rows, and the ones that break a search."""
    x = normal(12, 7)
    x[0] = 0
    x[1, :3] = 1e30
    x[2, 0], x[3, 1], x[4, 2] = -torch.inf, torch.finfo().min, torch.inf
    x[5] = torch.arange(7) * 100.0
    x[6, :] = -torch.inf
    x[7, 3] = torch.nan
    x[8] *= 1e-20
    x[9] += 1e6
    return x


FAST = ("soft_topk linear",)
FUNCTIONS = {
    **{f"soft_topk {n}": lambda x, n=n: kofn.soft_topk(x, 2.5, link=n) for n in LINKS},
    **{f"whole k {n}": lambda x, n=n: kofn.soft_topk(x, 2, link=n) for n in LINKS},
    "several": lambda x: (
        kofn.topk_gates(x, 2),
        kofn.hard_topk(x, 2.5),
        kofn.softmax(x),
        kofn.soft_topk(x, 2, temperature=0.3, link="laplace", mask=x > -3),
    ),
    **{f"entmax {a}": lambda x, a=a: kofn.entmax(x, a) for a in (1.0, 1.05, 1.3, 2.0, 3.0)},
    "sparsemax": kofn.sparsemax,
    "hard": lambda x: kofn.soft_topk(x, 2, hard=True),
    "log": lambda x: kofn.log_soft_topk(x, 2),
    "threshold": lambda x: kofn.soft_topk_threshold(x, 2.5),
    "normal": lambda x: (
        kofn.soft_topk_threshold(x, 2.5, link="normal"),
        kofn.log_soft_topk(x, 2, link="normal"),
        kofn.soft_topk_sum(x, 2.5, link="normal"),
    ),
    "sum": lambda x: kofn.soft_topk_sum(x, 2.5),
    "marginals": lambda x: kofn.KSubset(x, 2).marginals(),
}


@pytest.mark.parametrize(
    "name",
    [n if n in FAST else pytest.param(n, marks=pytest.mark.full) for n in FUNCTIONS],
)
def test_the_exported_model_has_the_eager_answer(name):
    function, x = FUNCTIONS[name], rows()
    answers = run(exported(function, normal(3, 7)), x)
    expected = torch.utils._pytree.tree_leaves(function(x))
    assert len(answers) == len(expected)
    for ours, theirs in zip(answers, expected, strict=True):
        ours = torch.tensor(ours)
        # ONNX leaves open where its TopK puts a NaN.
        keep = [i for i in range(len(x)) if i != 7]
        assert torch.allclose(ours[keep], theirs[keep], atol=2e-6, rtol=2e-6, equal_nan=True)
        if ours.is_floating_point() and "several" not in name:
            assert torch.equal(ours[7].isnan().any(), theirs[7].isnan().any())


@pytest.mark.full
def test_rows_of_another_length_and_the_exporters_optimiser_have_the_eager_answer():
    function = FUNCTIONS["soft_topk linear"]
    program = exported(function, normal(3, 7), lengths=True, optimize=True)
    for shape in ((3, 7), (5, 19), (2, 4), (6, 200)):
        x = normal(*shape)
        x[0, 1], x[1, 2] = -torch.inf, torch.finfo().min
        (answer,) = run(program, x)
        assert torch.allclose(torch.tensor(answer), function(x), atol=2e-6, rtol=2e-6)


class Knapsack(torch.nn.Module):
    def __init__(self, link):
        super().__init__()
        self.options = {"link": link, "temperature": 0.5}

    def forward(self, x, costs, budget):
        given = x, costs, budget
        return (
            kofn.soft_knapsack(*given, **self.options),
            kofn.soft_knapsack_threshold(*given, **self.options),
        )


@pytest.mark.full
@pytest.mark.parametrize("link", [*LINKS, kofn.links.entmax(1.3)])
def test_prices_and_weights_of_the_knapsack_are_the_eager_ones(link):
    rows = {0: torch.export.Dim("rows", min=2, max=4096)}
    given = normal(3, 7), normal(3, 7).abs(), normal(3).abs()
    program = torch.onnx.export(
        Knapsack(link).eval(),
        given,
        dynamo=True,
        dynamic_shapes=(rows, rows, rows),
        custom_translation_table=kofn_onnx.translations(),
        optimize=False,
        verbose=False,
    )
    x, costs = normal(12, 7, scale=3), normal(12, 7).abs()
    x[0, 0], x[1, 2], x[2, 1], costs[3, 2] = -torch.inf, torch.inf, torch.nan, 0
    x[6] *= 1e4
    x[8] = -torch.inf
    costs[7] *= torch.logspace(-3, 3, 7)
    budget = costs.sum(-1) * torch.linspace(0.02, 0.98, 12)
    budget[4], budget[5] = 0, torch.inf
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    given = x, costs, budget
    answers = session.run(None, {n: a.numpy() for n, a in zip(names, given, strict=True)})
    for ours, theirs in zip(answers, Knapsack(link)(*given), strict=True):
        assert torch.allclose(torch.tensor(ours), theirs, atol=2e-6, rtol=2e-6, equal_nan=True)


def test_what_has_no_translation_is_refused_by_name():
    own = kofn.Link(torch.sigmoid, lambda z: torch.sigmoid(z) * torch.sigmoid(-z))
    with pytest.raises(ValueError, match=r"cdf .*sigmoid.* has no ONNX translation"):
        kofn_onnx._tail_of(own.id, None, None)
    with pytest.raises(ValueError, match="an alpha per row has no ONNX translation"):
        kofn_onnx._tail_of(table.TABLE["entmax"].inner.id, None, object())


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # the exporter's
def test_the_export_says_why_it_refuses():
    with pytest.raises(torch.onnx.OnnxExporterError) as raised:
        exported(lambda x: kofn.temperature_for(x, 2, gap=0.1), normal(3, 7))
    messages, error = [], raised.value
    while error is not None:
        messages.append(str(error))
        error = error.__cause__
    assert "find the temperature before the export" in "".join(messages)


def test_every_link_of_the_table_is_translated():
    for link in table.TABLE.values():
        assert callable(kofn_onnx._tail_of(link.inner.id, link.inner.alpha, None)), link


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("price", lambda x: kofn.soft_knapsack(x, torch.ones(7), 2.0)),
        *(
            pytest.param(name, function, marks=pytest.mark.full)
            for name, function in {
                "threshold": lambda x: kofn.soft_topk(x, 2),
                "temperature": lambda x: kofn.temperature_for(x, 2, gap=0.1),
            }.items()
        ),
    ],
)
def test_without_translations_the_error_names_the_remedy(name, function, monkeypatch):
    monkeypatch.setattr(torch_operator, "translated", [])
    messages = (
        rf"kofn::{name}: import kofn\.onnx and .* custom_translation_table=kofn\.onnx\.transla"
    )
    with pytest.raises(torch.onnx.errors.OnnxExporterError, match=messages):
        torch.onnx.export(Of(function).eval(), (normal(3, 7),), dynamo=True, verbose=False)


REFUSED = [call for call in CALLS if "torch" in call.frameworks and without_onnx(call.public)]


def test_every_function_without_a_translation_has_a_call_and_is_in_the_docs():
    assert {without_onnx(call.public) for call in REFUSED} == set(WITHOUT_ONNX)
    page = ROOT.joinpath("docs/arrays.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| `torch.onnx.export"))
    for name in WITHOUT_ONNX:
        whole = name.endswith("*") or name[0].isupper()
        short = name if whole else name.rpartition(".")[2]
        assert f"`{short}`" in row or ("segment_" in name and "`segment_*`" in row), name


@pytest.mark.parametrize("call", REFUSED, ids=lambda call: call.name)
def test_a_function_without_a_translation_says_so_by_name(call, monkeypatch):
    if "temperature_for" in call.name:
        pytest.skip("its operator refuses: test_the_export_says_why_it_refuses")
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    name = re.escape(f"kofn.{without_onnx(call.public)}")
    with (
        surroundings(call),
        pytest.raises(ValueError, match=rf"{name}(?!\w).* cannot be exported to ONNX: "),
    ):
        call("torch")


def test_prices_are_found_in_brackets_of_any_width(monkeypatch):
    """The arithmetic of the translation, by NumPy in the place of ONNX's operators."""
    monkeypatch.setattr(kofn_onnx, "op", ByNumPy())
    x = [
        [3, 2, 1, 0, -1e30],
        [1e30, 2, 1, 0, -1e30],
        [3e6, 2e6 + 1, 2e6, 0, -1e30],
        [1, 2, 3, 4, 5],
    ]
    costs = [[1, 2, 1, 1, 1]] * 3 + [[1e-18, 1e15, 1, 3, 1e-7]]
    given = [np.array(each, "f4") for each in (x, costs, [2, 2, 3, 4], np.ones(4))]
    for link in table.TABLE.values():
        number = link.inner.alpha if isinstance(link.inner.alpha, float) else None
        with np.errstate(all="ignore"):
            *_, away, _ = kofn_onnx._price(*given, None, link=link.inner.id, number=number)
        wanted = kofn.soft_knapsack(*given[:3], link=link)
        assert link.inner.cdf(away.astype(float)) == pytest.approx(wanted, abs=2e-6), link


class ByNumPy:
    """What `_price` asks of ONNX's operators."""

    NAMES: ClassVar = {
        **dict(Add="add", Sub="subtract", Mul="multiply", Div="divide", Where="where", Abs="abs"),
        **dict(Less="less", Greater="greater", LessOrEqual="less_equal", Not="logical_not"),
        **dict(GreaterOrEqual="greater_equal", And="logical_and", Or="logical_or", Sign="sign"),
        **dict(Exp="exp", Log="log", Neg="negative", IsInf="isinf", IsNaN="isnan", Clip="clip"),
        **dict(Reciprocal="reciprocal", Min="minimum", Max="maximum", Pow="power"),
    }

    def __getattr__(self, name):
        return getattr(np, self.NAMES[name])

    def Constant(self, value_ints=None, value=None):
        return value_ints if value is None else onnx.numpy_helper.to_array(value)

    def CastLike(self, x, like):
        return np.asarray(x).astype(np.asarray(like).dtype)

    def Cast(self, x, to):
        return np.asarray(x).astype({11: np.float64, 9: np.bool_}[to])

    def Unsqueeze(self, x, axes):
        return np.expand_dims(x, tuple(axes))

    def ReduceSum(self, x, axes, keepdims):
        return np.sum(x, tuple(axes), keepdims=bool(keepdims))

    def ReduceMax(self, x, axes, keepdims):
        return np.max(x, tuple(axes), keepdims=bool(keepdims))

    def ReduceMin(self, x, axes, keepdims):
        return np.min(x, tuple(axes), keepdims=bool(keepdims))


@pytest.mark.full
@pytest.mark.parametrize(
    "link",
    [link if link == "entmax" else pytest.param(link, marks=pytest.mark.full) for link in LINKS],
)
def test_hard_choices_of_float64_scores(link):
    """Their Newton steps meet numbers beyond float32's: PyTorch's fillers made them infinite."""
    x = torch.tensor([[0.3, -2.9, -torch.inf], [0.3, 0.2, 0.1]], dtype=torch.float64)

    def function(x):
        return kofn.soft_topk(x, 1, link=link, temperature=0.5)

    (found,) = run(exported(function, x), x)
    assert torch.allclose(torch.tensor(found), function(x), atol=2e-6, rtol=0)


@pytest.mark.full
def test_models_of_float64_scores_are_valid_and_have_the_eager_answer():
    """With the row of scores of a knapsack that once spent 5 of 2."""
    x = torch.tensor([[3.0, 2, 1, 0, -1e30], [0.5, 2, 1, 0, 3]], dtype=torch.float64)
    costs = torch.tensor([1.0, 2, 1, 1, 1], dtype=torch.float64)

    def function(x):
        return kofn.soft_topk(x, 2, link="linear"), kofn.soft_knapsack(x, costs, 2.0)

    answers = run(exported(function, x), x)
    for ours, theirs in zip(answers, function(x), strict=True):
        assert ours.dtype == np.float64
        assert torch.allclose(torch.tensor(ours), theirs, atol=2e-6, rtol=0)


@pytest.mark.full
@pytest.mark.parametrize("link", [own_links.Student(), own_links.Gumbel(), own_links.Square()])
def test_links_of_scalar_formulas_are_translated(link):
    x = normal(4, 9, scale=30)
    (answer,) = run(exported(lambda x: kofn.soft_topk(x, 2.5, link=link), x), x)
    assert torch.allclose(torch.tensor(answer), kofn.soft_topk(x, 2.5, link=link), atol=2e-6)
