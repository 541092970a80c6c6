"""The table of example calls: complete, and what its rows say is so."""

import numpy as np
import pytest
import torch

from calls import CALLS, WITHOUT_ARRAYS, public_names, surroundings

calls = pytest.mark.parametrize("call", CALLS, ids=[call.name for call in CALLS])


def test_every_public_name_has_an_example_call_or_takes_no_arrays():
    called = {call.public for call in CALLS}
    named = set(public_names())
    assert named - called - set(WITHOUT_ARRAYS) == set()
    assert (called | set(WITHOUT_ARRAYS)) - named == set()
    assert called & set(WITHOUT_ARRAYS) == set()
    assert len({call.name for call in CALLS}) == len(CALLS)


def numbers(array):
    array = array.detach().cpu() if isinstance(array, torch.Tensor) else array
    return np.asarray(array)


def answers(call, framework):
    with surroundings(call):
        return [numbers(each) for each in call(framework)]


@calls
def test_frameworks_agree_on_an_example(call):
    first = answers(call, call.frameworks[0])
    assert first
    for framework in call.frameworks[1:]:
        if framework == "jax":
            continue  # test_every_example_runs_on_jax
        others = answers(call, framework)
        assert [each.shape for each in others] == [each.shape for each in first]
        if not call.random:
            assert all(map(np.allclose, first, others))


@pytest.mark.full
@pytest.mark.parametrize(
    "call", [call for call in CALLS if "jax" in call.frameworks], ids=lambda call: call.name
)
def test_every_example_runs_on_jax(call):
    others, first = (answers(call, framework) for framework in ("jax", "torch"))
    assert [each.shape for each in others] == [each.shape for each in first]
    if not call.random:
        assert all(map(np.allclose, first, others))


@calls
def test_the_answer_has_a_derivative_in_what_is_learned_and_in_nothing_else(call):
    if "torch" not in call.frameworks:
        return
    found = set()
    for name in call.arrays:
        given = call.made("torch")[name]
        if not given.is_floating_point():
            continue
        with surroundings(call):
            every = call("torch", **{name: given.requires_grad_()})
        if any(isinstance(each, torch.Tensor) and each.requires_grad for each in every):
            found.add(name)
    assert found == set(call.learned)
