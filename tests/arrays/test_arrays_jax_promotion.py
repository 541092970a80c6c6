"""Every function where a program forbids JAX to promote dtypes and ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calls import CALLS

SERVED = [call for call in CALLS if "jax" in call.frameworks]
ONCE_BROKEN = ("kofn.topk_gates", "kofn.topk", "kofn.quantile", "kofn.normal_rsample")
ONCE_BROKEN += ("kofn.distributed.hard_topk", "kofn.estimators.reinmax_through")
UNTRACED = ("RunningMean", ".study", ".Study")
"""What refuses a trace, or reads numbers."""


@pytest.fixture
def strictly():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def total(call, given, learned):
    answers = call("jax", "float32", **{**given, **learned})
    floats = [each for each in answers if jnp.issubdtype(jnp.asarray(each).dtype, jnp.floating)]
    return sum((jnp.sum(each).astype("float32") for each in floats), jnp.zeros((), "float32"))


@pytest.mark.parametrize(
    "call",
    [
        each if each.name in ONCE_BROKEN else pytest.param(each, marks=pytest.mark.full)
        for each in SERVED
    ],
    ids=lambda call: call.name,
)
def test_strict_rules_of_promotion_are_the_callers_alone(call, strictly):
    """What JAX traces forward and back, within jit and around it, and lowers."""
    given = call.made("jax", "float32")
    if call.random:
        given["rng"] = jax.random.key(0)
    if any(name in call.name for name in UNTRACED):
        call("jax", "float32", **given)
        return
    arrays = {name: given[name] for name in call.learned if isinstance(given[name], jax.Array)}
    jax.jit(lambda arrays: call("jax", "float32", **{**given, **arrays})).lower(arrays)
    if arrays:
        function = jax.jit(lambda arrays: total(call, given, arrays))
        jax.jit(jax.grad(function)).lower(arrays)


@pytest.mark.parametrize("name", ONCE_BROKEN)
def test_strict_rules_hold_for_calls_outside_of_jit(name, strictly):
    (call,) = (call for call in CALLS if call.name == name)
    answers = call("jax", "float32")
    assert np.isfinite(np.asarray(answers[0], float)).any()
