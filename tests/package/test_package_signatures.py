"""Public signatures: none changes unseen, and an argument has one place and one default."""

import importlib
import inspect

import pytest

import kofn
import signatures
from kofn import classic, distributed, losses, metrics, projections

# Where an argument stands among those that are given by name.
ORDER = (
    *(
        "group",
        "axis_name",
        "segment_ids",
        "ptr",
        "num_segments",
        "ratio",
        "k",
        "p",
        "min_p",
        "kept",
        "outside",
        "tail",
        "reverse",
        "noise",
        "epsilon",
    ),
    *("margin", "link", "support", "gap", "per_row", "temperature", "norm", "above", "dim"),
    *("mask", "hard", "rounds", "weight", "weights", "bias", "normalize", "kinks"),
    *("label_smoothing", "ignore_index", "reduction"),
)
DEFAULTS = {
    "alpha": 1.5,
    "dim": -1,
    "group": None,
    "hard": False,
    "link": "logistic",
    "mask": None,
    "noise": "normal",
    "num_segments": None,
    "ptr": None,
    "ratio": None,
    "reduction": "mean",
    "segment_ids": None,
    "temperature": 1.0,
    "weight": None,
}
# What the articles behind these functions, or the libraries whose names they bear, do.
OTHER_DEFAULTS = {
    ("fenchel_young_loss", "link"): "exponential",
    ("accuracy_loss", "link"): "exponential",
    ("epsilon_cross_entropy", "link"): "linear",
    ("am_softmax", "temperature"): 1 / 30,
    ("arcface", "temperature"): 1 / 64,
}
WITHOUT_ORDER = {
    "gumbel_max",
    "gumbel_softmax",
    "normal_rsample",
    "topk",
    "quantile",
    "segment_topk",
    "segment_quantile",
}  # as PyTorch and NumPy have them


def functions():
    for module in (kofn, losses, metrics, classic, distributed, projections):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found) and name not in WITHOUT_ORDER:
                yield pytest.param(name, found, id=f"{module.__name__}.{name}")


def test_signatures_are_those_that_were_agreed():
    written = signatures.SNAPSHOT.read_text(encoding="utf-8").splitlines()
    now = signatures.everything()
    gone = "\n".join(f"- {line}" for line in written if line not in now)
    new = "\n".join(f"+ {line}" for line in now if line not in written)
    assert now == written, (
        f"public signatures changed:\n{gone}\n{new}\nIf that is meant, run `make signatures` and "
        "commit tests/signatures.txt. A name, argument or default that goes or changes needs a "
        "deprecation first: see CONTRIBUTING.md."
    )


LIBRARIES = {
    "kofn.onnx": "onnxscript",
    "kofn.integrations.dictionary_learning": "torch",
    "kofn.integrations.saelens": "safetensors",
    "kofn.integrations.torch_geometric": "torch_geometric",
    "kofn.integrations.transformers": "transformers",
}
"""What a module that is imported by its name needs."""


@pytest.mark.parametrize("name", [*signatures.MODULES[1:], *LIBRARIES])
def test_dir_lists_the_public_names_of_a_module(name):
    pytest.importorskip(LIBRARIES.get(name, "kofn"))
    module = importlib.import_module(name)
    assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize(("name", "function"), list(functions()))
def test_the_same_argument_stands_in_the_same_place_and_has_the_same_default(name, function):
    parameters = inspect.signature(function).parameters.values()
    by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    assert by_name == sorted(by_name, key=ORDER.index)
    for each in parameters:
        if each.name in DEFAULTS and each.default is not each.empty:
            expected = OTHER_DEFAULTS.get((name, each.name), DEFAULTS[each.name])
            assert each.default == expected, each
