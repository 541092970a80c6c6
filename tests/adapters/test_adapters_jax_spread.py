"""Rows spread over eight devices: what they say to each other, and what they answer.

XLA makes eight devices of one processor only in a process that starts so: this file is its script.
Collectives are read from compiled programs.
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
from table_of_collectives import COLLECTIVE

import kofn
from kofn import losses
from places import as_program

full = pytest.mark.full
X, C, COSTS = (np.random.default_rng(i).standard_normal((8, 40)) for i in range(3))


def labels(x):
    return jnp.zeros_like(x[..., 0], dtype=int)


def filled(answer):
    """As many entries as X has: JAX cannot shard fewer, and XLA gathers them where they leave."""
    return jnp.pad(answer, ((0, 0), (0, X.shape[1] - answer.shape[1])))


MAPS = {
    "soft_topk": lambda x: kofn.soft_topk(x, 4),
    "normal": lambda x: kofn.soft_topk(x, 4, link="normal"),
    "per row": lambda x: kofn.soft_topk(x, 1 + jnp.arange(8.0), temperature=1 + jnp.arange(8.0)),
    "in k": lambda x: kofn.soft_topk(x, 1 + jax.nn.sigmoid(x.sum(-1))),
    "in T": lambda x: kofn.soft_topk(x, 2, temperature=jnp.exp(x.mean(-1))),
    "cold": lambda x: kofn.soft_topk(x, 4, temperature=1e-4),
    "hard": lambda x: kofn.soft_topk(x, 4, hard=True),
    "hard_topk": lambda x: kofn.hard_topk(jnp.round(x), 4.5),
    "hard of each": lambda x: kofn.hard_topk(jnp.round(x), jnp.arange(8) * 0.75),
    "gates": lambda x: kofn.topk_gates(x, 4)[0],
    "indices": lambda x: kofn.topk_gates(jnp.round(x), 4)[1] + 0 * x[:, :4],
    "softmax": kofn.softmax,
    "sparsemax": kofn.sparsemax,
    "entmax": kofn.entmax,
    "log_soft_topk": lambda x: kofn.log_soft_topk(x, 4),
    "masked": lambda x: kofn.soft_topk(x, 4, mask=jnp.arange(40) < 9),
    "infinite": lambda x: kofn.soft_topk(jnp.where(x > 1.5, jnp.inf, x), 4),
    "with NaN": lambda x: kofn.soft_topk(jnp.where(x > 2.2, jnp.nan, x), 4),
    # JAX refuses arrays that do not divide; inside a program, XLA fills up the last shards.
    "uneven": lambda x: filled(kofn.soft_topk(x[:, :37], 4)),
    "uneven hard": lambda x: filled(kofn.hard_topk(x[:, :37], 4.5)),
    "fewer than devices": lambda x: filled(kofn.soft_topk(x[:, :5], 4)),
    "threshold": lambda x: kofn.soft_topk_threshold(x, 4),
    "sum": lambda x: kofn.soft_topk_sum(x, 4),
    "fenchel_young_loss": lambda x: kofn.fenchel_young_loss(
        x, jnp.full_like(x, 0.1), link="logistic", reduction="none"
    ),
    "softmax_loss": lambda x: losses.softmax_loss(x, labels(x) + 17, reduction="none"),
    "topk_loss": lambda x: losses.topk_loss(x, C > 1, reduction="none"),
    "topk_cross_entropy": lambda x: losses.topk_cross_entropy(
        x, labels(x) + 39, 4, reduction="none"
    ),
    "knapsack": lambda x: kofn.soft_knapsack(x, abs(COSTS), 9.0),
}
SHARDINGS = {
    "rows": ((8,), P("a")),
    "entries": ((8,), P(None, "a")),
    "both": ((4, 2), P("b", "a")),
    "entries of two axes": ((4, 2), P(None, ("b", "a"))),
}
MOST = {  # collectives in a program, those of loops and of branches counted once
    "softmax/value": 3,
    "softmax/gradient": 4,
    "hard_topk/value": 3,
    "sparsemax/value": 5,
    "sparsemax/gradient": 7,
    "soft_topk/value": 8,
    "soft_topk/gradient": 10,
    "hard/gradient": 10,
}
AT_MOST = {  # those outside of loops and of branches: 2 of the weights, 2 of their gradient
    "soft_topk/value": 2,
    "soft_topk/gradient": 2 + 2,
    "sparsemax/gradient": 2 + 2,
    "hard/gradient": 2 + 2,
    "in k/gradient": 4 + 2,
}
BYTES = {"pred": 1, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}


def collectives(program):
    """Return the name of each collective in a program, and how many bytes a device gets by it."""
    found = COLLECTIVE.findall(program)
    arrays = [re.findall(r"(\w+)\[([\d,]*)\]", shapes) for shapes, _ in found]
    return [
        (
            name,
            sum(
                BYTES[kind] * int(np.prod([int(m) for m in n.split(",") if m])) for kind, n in each
            ),
        )
        for (_, name), each in zip(found, arrays, strict=True)
    ]


def pulled(f):
    """The gradient of a weighted sum of f's answers."""

    def total(x):
        y = f(x)
        return (y * (C[:, : y.shape[-1]] if y.ndim == 2 else C[:, 0])).sum()

    return jax.grad(total)


def near(a, b, tolerance):
    return np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def check(name, how, f, tolerance=1e-9):
    """Say what is wrong with a function of an array that is sharded in some way."""
    shape, spec = SHARDINGS[how]
    mesh = jax.make_mesh(shape, ("a", "b")[: len(shape)], axis_types=(AxisType.Auto,) * len(shape))
    x = jax.device_put(jnp.asarray(X), NamedSharding(mesh, spec))
    compiled = jax.jit(f).lower(x).compile()
    answer, program = compiled(x), compiled.as_text()
    said, always = collectives(program), collectives(program.partition("\nENTRY")[2])
    if not near(answer, f(jnp.asarray(X)), tolerance):
        return print(name, how, "is wrong")
    if how == "rows" and said:
        return print(name, how, "says", said)
    if [size for kind, size in said if kind != "all-reduce" and size >= 8 * X.size]:
        return print(name, how, "gathers rows:", said)
    if [size for kind, size in said if kind == "all-reduce" and size > 64 * len(X)]:
        return print(name, how, "sends more than 64 bytes of a row:", said)
    most, at_most = MOST.get(name, 40), AT_MOST.get(name, 40)
    if os.environ.get("KOFN_KERNELS") == "reference":
        # Array code differentiates what it did, in T, too: one more for the pivot of that.
        most, at_most = 40, 8 + 1 if name in AT_MOST else 40
    if len(said) > most or len(always) > at_most:
        return print(name, how, "says too much:", said)
    if answer.shape == X.shape and not answer.sharding.is_equivalent_to(x.sharding, 2):
        return print(name, how, "is moved to", answer.sharding)
    return print(name, how, "is right")


def main(*tasks):
    jax.config.update("jax_enable_x64", True)
    for task in tasks:
        name, how, kind = task.split("/")
        check(f"{name}/{kind}", how, MAPS[name] if kind == "value" else pulled(MAPS[name]))


if __name__ == "__main__":
    main(*sys.argv[1:])


def report(*tasks, **environment):
    run = as_program(__file__, *tasks, devices=8, **environment)
    return [line for line in run.stdout.splitlines() if not line.endswith("is right")] or (
        None if run.returncode == 0 else run.stderr[-2000:]
    )


needs_shardy = pytest.mark.skipif(
    not hasattr(jax, "shard_map"), reason="in jax.experimental before 0.6"
)
GRADIENTS = [
    name for name in MAPS if name not in ("hard_topk", "hard of each", "uneven hard", "indices")
]


@needs_shardy
def test_rows_say_nothing_to_each_other_and_entries_little():
    values = ("soft_topk", "hard_topk", "softmax_loss")
    tasks = [f"{name}/rows/value" for name in values]
    tasks += [f"{name}/rows/gradient" for name in ("soft_topk", "gates")]
    tasks += ["hard_topk/entries/value", "indices/both/value", "softmax/entries/gradient"]
    tasks += ["soft_topk/entries/gradient"]
    assert report(*tasks) is None


@full
@needs_shardy
@pytest.mark.parametrize("kernels", ["", "reference"])
@pytest.mark.parametrize("how", SHARDINGS)
def test_every_map_in_every_sharding(how, kernels):
    """In one process: to load JAX and kofn takes longer than most of these programs."""
    tasks = [f"{name}/{how}/value" for name in MAPS]
    tasks += [f"{name}/{how}/gradient" for name in GRADIENTS]
    assert report(*tasks, KOFN_KERNELS=kernels) is None
