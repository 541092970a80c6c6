"""JAX: the calls of the table on arrays of an explicit mesh, along the batch and along rows.

XLA makes two devices of one processor only in a process that starts so: this file is its script.
"""

import os
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import kofn
from calls import CALLS, Call
from calls.data import X
from jax_programs import let_go_of_many
from places import as_program

# What has meshes of its own, whole models, what is told the shape of the batch.
OTHERS = (".distributed.", ".estimators.", ".nn.", ".integrations.", "feature_selection", ".expand")
OTHERS += ("[kept]",)  # a set for each row of the table
REFUSED = ("segment_", "soft_assignment")


PLAIN = "labels that nothing smooths"
SOME = r"kofn\.(KSubset\.sample|losses\.entmax_loss)"
WAYS = ("batch", "rows", "batch of the first", "rows of the first")


def calls(names):
    if names == PLAIN:
        given = {"scores": X, "target": np.array([0, 4, 2])}
        yield Call(PLAIN, kofn.losses.entmax_loss, given, ("scores",))
    for call in CALLS:
        others = any(name in call.name for name in OTHERS)
        if "jax" in call.frameworks and not others:
            yield call


def even(value):
    """An array with an even number of rows and of entries, which two devices can have parts of."""
    if not isinstance(value, np.ndarray):
        return value
    for axis, size in enumerate(value.shape):
        if size in (3, 5):
            value = np.concatenate([value, np.take(value, [0], axis)], axis)
    return value


def places(call, given, along):
    """Where the arrays of a call lie: what is of the form of the first one as it does, or whole."""
    first = given[call.first]
    for name in call.arrays:
        shape, spec = given[name].shape, [None] * given[name].ndim
        if name != call.first and "the first" in along:
            pass
        elif "rows" in along and shape == first.shape:
            spec[-1] = "a"
        elif "batch" in along and shape[:1] == first.shape[:1] and first.ndim > 1:
            spec[0] = "a"
        yield name, P(*spec)


def check(call, ways):
    """Say what is wrong with a call on a mesh."""
    given = dict(call.arguments)
    if "segments" not in call.together:  # those have ten entries
        given = {name: even(value) for name, value in given.items()}
    arrays = {name: jnp.asarray(given[name]) for name in call.arrays}
    rest = {name: value for name, value in given.items() if name not in arrays}
    learned = {name: arrays[name] for name in call.learned if name in arrays}
    others = {name: value for name, value in arrays.items() if name not in learned}

    def values(learned, others):
        found = call("jax", **learned, **others, **rest)
        return [each for each in found if hasattr(each, "dtype")]

    def slopes(learned, others):
        def total(learned):
            whole = (jnp.nan_to_num(each) for each in values(learned, others))
            return sum((jnp.cos(each) * each).sum() for each in whole if each.dtype.kind == "f")

        return jax.grad(total)(learned)

    functions = [values, slopes] if learned else [values]
    wanted = [jax.jit(f)(learned, others) for f in functions]
    mesh = jax.make_mesh((2,), ("a",), axis_types=(AxisType.Explicit,))
    for along in ways:
        spots = dict(places(call, given, along))
        parts = [
            {name: jax.device_put(x, NamedSharding(mesh, spots[name])) for name, x in part.items()}
            for part in (learned, others)
        ]
        for f, expected in zip(functions, wanted, strict=True):
            try:
                with jax.set_mesh(mesh):
                    found = jax.jit(f)(*parts)
            except Exception as error:
                named = "is divided by an explicit mesh" in str(error)
                if named and any(name in call.name for name in REFUSED):
                    continue
                print(call.name, along, f.__name__, type(error).__name__, str(error)[:300])
                continue
            for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
                if not np.allclose(ours, theirs, 1e-6, 1e-9, equal_nan=True):
                    print(call.name, along, f.__name__, "is", ours, "not", theirs)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for names, os.environ["KOFN_KERNELS"] in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        for each in calls(names):
            if re.fullmatch(names, each.name):
                ways = {SOME: WAYS[1:2], PLAIN: WAYS[2:3]}.get(names, WAYS)
                check(each, ways)
                let_go_of_many()
    print("done", flush=True)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="not in JAX before 0.7")
@pytest.mark.parametrize(
    "names_and_kernels",
    [
        (SOME, "on", PLAIN, "reference"),
        pytest.param((".*", "on"), marks=pytest.mark.full),
        pytest.param((".*", "reference"), marks=pytest.mark.full),
    ],
    ids=["some", "all", "all in array code"],
)
def test_arrays_on_an_explicit_mesh_have_the_answers_of_whole_ones(names_and_kernels):
    found = as_program(__file__, *names_and_kernels, devices=2)
    assert found.stdout == "done\n", found.stdout[-3000:] + found.stderr[-2000:]
