"""Count the collectives of JAX's programs for arrays on several devices; distributed.md has them.

`python docs/table_of_collectives.py` prints the table; with `--write` the page takes it. Names of
functions print their lines alone. It compiles, and runs nothing: a minute or two for all lines.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from written import Part, show

import kofn

PART = Part("docs/distributed.md", "collectives", "python docs/table_of_collectives.py --write")
DEVICES, ROWS, N, K = 8, 16, 64, 4
X, COSTS = np.random.default_rng(0).standard_normal((2, ROWS, N), dtype=np.float32)
COLLECTIVE = re.compile(
    r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)
"""A line of a compiled program: the shapes of what a collective gives, and its name."""
WHOLE, IN_SHARDS = PartitionSpec("devices"), PartitionSpec(None, "devices")
HEAD = (
    f"{ROWS} rows of {N} scores in float32 on {DEVICES} devices, k = {K}, JAX {jax.__version__}:\n",
    "| | whole rows | rows in shards | of these outside of loops and branches |",
    "| --- | --- | --- | --- |",
)

Function = Callable[[Any], Any]


def _soft_topk(x: Any) -> Any:
    return kofn.soft_topk(x, K)


FUNCTIONS: dict[str, Function] = {
    "jax.nn.softmax": jax.nn.softmax,
    "kofn.softmax": kofn.softmax,
    "soft_topk": _soft_topk,
    "sparsemax": kofn.sparsemax,
    "hard_topk": lambda x: kofn.hard_topk(x, K),
    "topk_gates": lambda x: kofn.topk_gates(x, K)[0],
    "soft_topk_threshold": lambda x: kofn.soft_topk_threshold(x, K),
    "soft_knapsack": lambda x: kofn.soft_knapsack(x, abs(COSTS), 9.0),
    "soft_topk, exported": _soft_topk,
}


def slope(f: Function) -> Function:
    """Return the gradient of a weighted sum of the answers of a function."""

    def total(x: Any) -> Any:
        answer = f(x)
        weights = np.cos(np.arange(answer.size, dtype=answer.dtype)).reshape(answer.shape)
        return (answer * weights).sum()

    return jax.grad(total)


def exported(f: Function, x: jax.Array) -> Function:
    """Return the call of a function that has been exported for arrays such as x."""
    called: Function = export.export(jax.jit(f))(x).call
    return called


def program(name: str, f: Function, spec: PartitionSpec) -> str:
    """Return the compiled program of a function for rows that are divided in this way."""
    mesh = jax.make_mesh((DEVICES,), ("devices",), axis_types=(AxisType.Auto,))
    x = jax.device_put(X, NamedSharding(mesh, spec))
    f = exported(f, x) if name.endswith("exported") else f
    return str(jax.jit(f).lower(x).compile().as_text())


def shown(found: list[str]) -> str:
    """Return how many collectives there are, and how many of them gather."""
    gathers = len(found) - found.count("all-reduce")
    return f"{len(found)} ({gathers} gather)" if gathers else f"{len(found)}"


def counts(name: str, spec: PartitionSpec) -> tuple[str, str]:
    """Return the collectives of the answer, and of its gradient: all, and how many always run."""
    f = FUNCTIONS[name]
    ways = [f] if "hard" in name else [f, slope(f)]
    programs = [program(name, each, spec) for each in ways]
    every = [[kind for _, kind in COLLECTIVE.findall(text)] for text in programs]
    always = [len(COLLECTIVE.findall(text.partition("\nENTRY")[2])) for text in programs]
    return ", ".join(map(shown, every)), ", ".join(map(str, always))


def lines(names: list[str]) -> Iterator[str]:
    """Return the lines of functions."""
    for name in names:
        (whole, _), (shards, always) = (counts(name, spec) for spec in (WHOLE, IN_SHARDS))
        first, comma, how = name.partition(",")
        yield f"| `{first}`{comma}{how} | {whole} | {shards} | {always} |"


def main(arguments: list[str]) -> None:
    jax.config.update("jax_num_cpu_devices", DEVICES)
    named = [name for name in arguments if not name.startswith("-")]
    if named:
        print(*lines(named), sep="\n")
    else:
        show({PART: "\n".join([*HEAD, *lines([*FUNCTIONS])])})


if __name__ == "__main__":
    main(sys.argv[1:])
