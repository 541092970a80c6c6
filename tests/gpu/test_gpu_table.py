"""The table of functions has what kofn has."""

import pytest

import kofn
from benchmarks.gpu.functions import ELSEWHERE, FUNCTIONS
from kofn import losses, metrics, nn, projections

MODULES = (kofn, losses, metrics, nn, projections)


@pytest.mark.parametrize("module", MODULES, ids=lambda one: one.__name__)
def test_every_public_function_is_in_the_table(module):
    words = {word for one in FUNCTIONS for word in one.name.replace(",", ".").split(".")}
    missing = [name for name in module.__all__ if name not in words | set(ELSEWHERE)]
    assert not missing
