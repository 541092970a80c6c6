"""Errors of the public functions, side by side: each names the argument that is wrong."""

import inspect

import numpy as np
import pytest

import kofn
from kofn import classic, losses, metrics, projections

SCORES = np.array([[2.0, 1.0, 0.5, -1.0], [0.0, 1.0, 2.0, 3.0]])
CHOSEN = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
# What each function needs; the first of these that it takes are given to it.
NEEDED = {
    "scores": SCORES,
    "logits": SCORES,
    "cosines": SCORES / 4,
    "target": CHOSEN,
    "weights": CHOSEN,
    "costs": np.ones((2, 4)),
    "budget": 2.0,
    "k": 2,
    "alpha": 2.0,
    "support": 2.5,
    "x": SCORES,
    "q": 0.5,
    "lower": 0.0,
    "upper": 1.0,
    "w": 1.0,
    "c": 2.0,
    "ids": np.array([[0, 1], [3, 2]]),
    "log_probs": np.log([[0.6, 0.3], [0.5, 0.2]]),
}
LEFT_OUT = {("softmax", "weights"), ("perturbed_argmax", "support")}
WRONG = {
    "scores": ([1.0, 2.0], np.arange(4), np.array(1.0)),
    "logits": ([1.0, 2.0], np.arange(4), np.array(1.0)),
    "cosines": ([1.0, 2.0], np.arange(4), np.array(1.0)),
    "weights": ([1.0, 2.0],),
    "target": ("a", np.array([0.5])),
    "budget": (-1.0, "a"),
    "costs": (np.ones(3), "a"),
    "k": (-1, float("nan"), "2", True),
    "alpha": (float("nan"), "1"),
    "temperature": (0, -1.0, float("nan"), float("inf"), "1", np.ones(3)),
    "dim": (5, 1.0, "x"),
    "mask": (np.ones(4), np.ones(3, bool), [True]),
    "link": ("foo", 3),
    "noise": ("foo",),
    "norm": ("l7",),
    "reduction": ("average",),
    "hard": ("no", 1),
    "normalize": ("no",),
    "per_row": ("no",),
    "label_smoothing": (2.0, "a"),
    "weight": (np.ones(3),),
    "bias": (np.ones(3),),
    "x": ([1.0, 2.0], np.array(1.0)),
    "q": (2.0, "a"),
    "scale": (0.0, -1.0, float("nan"), "1", np.ones(3)),
    "lower": (float("nan"), "0", np.ones(3)),
    "upper": (float("nan"), "0", np.ones(3)),
    "w": (float("nan"), "0", np.ones(3)),
    "c": (float("nan"), float("inf"), "0", np.ones(3)),
    "interpolation": ("foo", 1),
    "largest": ("no", 1),
    "sorted": ("no", 1),
    "keepdim": ("no", 1),
    "ignore_nan": ("no", 1),
    "ids": ([0, 1], np.zeros((2, 2)), np.zeros(3, int)),
    "log_probs": ([0.0, 1.0], np.zeros(3), np.zeros((2, 2), int)),
    "tail": ("heavy", 1),
    "reverse": ("no", 1),
    "outside": ("in", 1),
    "min_p": (-1.0, 2.0, "a"),
    "p": (-1.0, 2.0, "a"),
}
ALLOWED = {
    "quantile": {"temperature": 0, "x": np.array(1.0)},
    "hard_topk": {"scores": np.arange(4)},
}


def functions():
    for module in (kofn, losses, metrics, classic, projections):
        for name in module.__all__:
            found = getattr(module, name)
            # Segments have tests of their own (test_rows_segments.py).
            if inspect.isfunction(found) and "segment" not in name and name != "normal_rsample":
                yield pytest.param(found, id=f"{module.__name__}.{name}")


@pytest.mark.parametrize("function", list(functions()))
def test_a_wrong_argument_is_named(function):
    taken = inspect.signature(function).parameters
    left_out = {argument for name, argument in LEFT_OUT if name == function.__name__}
    given = {name: NEEDED[name] for name in NEEDED if name in taken and name not in left_out}
    for argument in taken:
        for wrong in WRONG.get(argument, ()):
            if np.array_equal(wrong, ALLOWED.get(function.__name__, {}).get(argument)):
                continue
            with pytest.raises((TypeError, ValueError), match=rf"^{argument}\b"):
                function(**{**given, argument: wrong})


@pytest.mark.parametrize("hard", [True, np.True_, False, np.False_])
def test_flags_of_numpy_are_flags(hard):
    weights = kofn.soft_topk(SCORES, 2, hard=hard)
    assert (set(np.unique(weights)) == {0.0, 1.0}) == bool(hard)
