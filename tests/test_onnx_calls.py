"""torch.onnx.export of every public function: the eager answer in onnxruntime, or an error by name.

What is refused is in `WITHOUT_ONNX`; nothing ends in PyTorch's own error.
"""

import dataclasses
import re

import numpy as np
import pytest
import torch

from calls import CALLS, flat, surroundings
from kofn.arrays.without_onnx import without_onnx

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
kofn_onnx = pytest.importorskip("kofn.onnx")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the exporter, many
FAST = ("kofn.taylor_softmax", "kofn.perturbed_argmax", "kofn.streaming.topk")


def one_alpha(call):
    """The call with a number for an alpha per row, which has no translation."""
    if "alpha" not in call.arrays:
        return call
    return dataclasses.replace(call, arguments={**call.arguments, "alpha": 1.5})


# A RunningMean says by itself that nothing may trace it.
SERVED = [c for c in CALLS if "torch" in c.frameworks and "RunningMean" not in c.name]
MEET = {
    **dict.fromkeys(
        (f"kofn.RelaxedOneHot{name}" for name in ("", ".expand", ".to_torch")),
        "RelaxedOneHot.log_prob",
    ),
    "kofn.nn.TopKRouter[assignment]": "soft_assignment",
}
"""Calls that come by a refused function, and which."""


def refused(call):
    return MEET.get(call.name) or without_onnx(call.public)


REFUSED = [call for call in SERVED if refused(call)]
EXPORTED = [one_alpha(call) for call in SERVED if call not in REFUSED]
PER_ROW = [call for call in SERVED if "alpha" in call.arrays and call not in REFUSED]


def name_of(call):
    return call.name


class Of(torch.nn.Module):
    """A call as a module of its arrays."""

    def __init__(self, call, dtype):
        super().__init__()
        self.call, self.given = call, call.made("torch", dtype)
        self.arrays = tuple(self.given[name] for name in call.arrays)

    def forward(self, *arrays):
        given = {**self.given, **dict(zip(self.call.arrays, arrays, strict=True))}
        given = {"rng": None, **given} if self.call.random else given
        answers = flat(self.call.function(**given))
        return tuple(each for each in answers if isinstance(each, torch.Tensor))


@pytest.fixture(autouse=True)
def weights_of_modules(monkeypatch):
    """First weights without a draw: a row of a module makes it, in the exported program too."""

    def spread(self, low=0.0, high=1.0, **_):
        # Scalars are float32 in an exported program, as this one is.
        steps = torch.arange(self.numel(), dtype=self.dtype) * 0.6181640625 % 1
        return self.copy_(low + (high - low) * steps.reshape(self.shape))

    monkeypatch.setattr(torch.Tensor, "uniform_", spread)
    monkeypatch.setattr(
        torch.Tensor, "normal_", lambda self, mean=0.0, std=1.0, **_: spread(self, -std, std)
    )


def exported(module):
    return torch.onnx.export(
        module.eval(),
        module.arrays,
        dynamo=True,
        custom_translation_table=kofn_onnx.translations(),
        optimize=False,
        verbose=False,
    )


def answers_of(program, arrays, runs=1):
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    # An argument that the answer does not depend on may be no input.
    names = [each.name for each in session.get_inputs()]
    given = {name: arrays[int(name.rpartition("_")[2])].numpy() for name in names}
    return [session.run(None, given) for _ in range(runs)]


def messages_of(error):
    """What an error says, and what caused it."""
    found = []
    while error is not None:
        found.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(found)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "call",
    [
        call if call.name in FAST else pytest.param(call, marks=pytest.mark.full)
        for call in EXPORTED
    ],
    ids=name_of,
)
def test_the_exported_function_has_the_eager_answer(call, dtype):
    with surroundings(call):
        module = Of(call, dtype)
        expected = module(*module.arrays)
        program = exported(module)
    answers, *others = answers_of(program, module.arrays, runs=9 if call.random else 1)
    assert len(answers) == len(expected)
    for ours, theirs in zip(answers, expected, strict=True):
        theirs = theirs.detach().numpy()
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if not call.random:
            # Weights are right to 2e-6, and what they multiply is of this size.
            size = max(1.0, np.abs(theirs).max(initial=0.0)) if theirs.dtype.kind == "f" else 1.0
            np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6 * size)
    if call.random:  # each run draws anew: no sample is a constant of the program
        assert any(any((a != b).any() for a, b in zip(answers, o, strict=True)) for o in others)


@pytest.mark.parametrize(
    "call",
    [call if call.name in FAST else pytest.param(call, marks=pytest.mark.full) for call in REFUSED],
    ids=name_of,
)
def test_the_export_of_what_is_refused_names_it(call):
    with surroundings(call), pytest.raises(torch.onnx.OnnxExporterError) as raised:
        exported(Of(call, "float32"))
    name = re.escape(refused(call))
    if "temperature_for" in name:  # the operator says it
        wanted = "temperature_for .* has no ONNX translation"
    else:
        wanted = rf"kofn\.{name}(?!\w).* cannot be exported to ONNX"
    assert re.search(wanted, messages_of(raised.value))


@pytest.mark.full
@pytest.mark.parametrize("call", PER_ROW, ids=name_of)
def test_the_export_of_an_alpha_per_row_says_what_to_give(call):
    with pytest.raises(torch.onnx.OnnxExporterError) as raised:
        exported(Of(call, "float32"))
    assert "export with a number for alpha" in messages_of(raised.value)
