"""The page of properties is what its command measures, and its claims hold there."""

import math
import re

import numpy as np
import pytest
import table_of_properties as script

import kofn
from kofn import metrics

BOUNDS = {"1, as n grows": 1.0, "1/2, for n = 2": 0.5}  # not attained by six scores

NAMED = {"π": math.pi, "e": math.e, "inf": math.inf, "root": math.sqrt}


def claimed(text):
    """Return the number that a claim such as 1/√(2π) is."""
    every = re.sub(r"√(\w+)", r"√(\1)", text).replace("√", "root").replace("2π", "2 * π")
    return eval(every.replace("∞", "inf"), NAMED)


def test_the_page_has_what_the_command_measures():
    for part, table in ((script.LAWS, script.laws()), (script.NUMBERS, script.numbers())):
        assert part.text == table, f"run: {part.command}"


@pytest.mark.parametrize("each", script.MAPS, ids=lambda each: each.name)
def test_lipschitz_constants_are_attained_and_not_passed(each):
    found = script.steepest(each)
    if each.slope in BOUNDS:
        assert 0.2 < found < BOUNDS[each.slope]
    elif each.slope == "∞":
        assert found == math.inf
    else:
        assert 0.98 * claimed(each.slope) <= found <= claimed(each.slope) + 1e-6


def test_the_slope_of_entmax_comes_to_1_as_rows_grow():
    ahead = np.linspace(1, 1.99, 30)
    found = []
    for n in (2, 100, 10_000):
        x = np.zeros((30, n))
        x[:, 0] = ahead if n > 2 else 0
        found.append(float(metrics.jacobian_norm(x, 1, link="entmax").max()))
    assert found == pytest.approx([math.sqrt(0.5), 0.75, 0.93], abs=0.01)


def test_the_slope_of_taylor_softmax_is_half_for_two():
    step = 1e-5 * np.eye(2)
    slopes = (kofn.taylor_softmax(step) - kofn.taylor_softmax(-step)) / 2e-5
    assert np.linalg.norm(slopes, 2) == pytest.approx(0.5, abs=1e-6)


def test_the_measurements_tell_maps_apart():
    """What the command finds of maps whose properties are known, beside those of the page."""
    cube = lambda x: np.clip(x, 0, 1) ** 3  # noqa: E731
    assert script.smoothness(lambda x: np.round(x)) == "jumps"
    assert script.smoothness(lambda x: np.abs(x)) == "C⁰"
    assert script.smoothness(lambda x: np.maximum(x, 0) ** 2) == "C¹"
    assert script.smoothness(lambda x: np.maximum(x, 0) ** 3) == "C²"
    assert script.smoothness(np.sin) == "C∞"
    assert script.smoothness(cube) == "C⁰"
    assert script.order(lambda x: -x) == "no"
    assert script.order(np.round) == "weak"
    assert script.order(np.exp) == "strict"
    assert script.shift(np.exp) == "no"
