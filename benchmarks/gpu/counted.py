"""Count what the public functions launch on a GPU, where there is none.

`python -m benchmarks.gpu.counted` prints the table, and with --write docs/platforms.md takes it;
with names of functions and --names it says where their launches come from.

Operations of PyTorch on CPU tensors count as one launch each, as most of them are on a GPU; views
and memory count as none. Triton's kernels run in its interpreter and count as one each. Bytes are
those of the arrays that a launch reads and writes, once each, in units of the scores' own. A wait
is a number, or a list of places, that the host reads from the device or has it copy.
"""

from __future__ import annotations

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import contextlib
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.functions import FUNCTIONS, Draw, Function
from benchmarks.gpu.published import ANEW

ROWS, LENGTH = 1024, 64
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "platforms.md"
BEGIN, END = "<!-- launches: python -m benchmarks.gpu.counted --write -->", "<!-- /launches -->"

MEMORY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach",
          "lift_fresh", "is_same_size", "_unsafe_view", "set_", "resize_"}  # fmt: skip
"""Operations that launch nothing, beside views."""

READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim",
         "unique_consecutive", "bincount"}  # fmt: skip
"""Operations whose answer the host waits for."""


SEVERAL = {
    **dict.fromkeys(
        ("masked_fill", "masked_scatter", "scatter", "scatter_add", "scatter_reduce", "index_add",
         "index_copy", "index_fill", "index_put", "_unsafe_index_put", "slice_scatter",
         "select_scatter", "slice_backward", "select_backward", "constant_pad_nd", "isinf", "topk"),
        2,
    ),
    "sort": 3,
}  # fmt: skip
"""Launches of operations that take more than one: most copy first, or fill with 0, and then write;
`isinf` takes the absolute value first, `topk` sorts what it has found, and a sort has its numbers
copied and their places written first.
"""


class Count(NamedTuple):
    """Of one pass."""

    launches: int
    bytes: int
    waits: int
    kernels: int  # of the launches, those of Triton
    of: Counter[str]  # launches by name


class Tally(TorchDispatchMode):
    """Counts operations on tensors; kernels and reads tell it of themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter()
        self.bytes = self.waits = self.kernels = 0
        self.off = False

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = f(*args, **(kwargs or {}))
        if not self.off:
            self._add(f, args, kwargs or {}, found)
        return found

    def _add(self, f: Any, args: Any, kwargs: dict[str, Any], found: Any) -> None:
        name = f.overloadpacket.__name__
        given, answers = _tensors((args, kwargs)), _tensors(found)
        if name in READS or _picks_by_flags(name, args):
            self.waits += 1
        if name in MEMORY or f.namespace == "prim" or not answers or name == "_local_scalar_dense":
            return
        if not f._schema.is_mutable and all(_is_view(one, given) for one in answers):
            return
        self.add(name, [*given, *(one for one in answers if not f._schema.is_mutable)])

    def add(self, name: str, tensors: list[Tensor]) -> None:
        self.of[name] += SEVERAL.get(name, 1)
        self.bytes += sum(_size(one) for one in tensors)

    def launched(self, name: str, tensors: list[Tensor]) -> None:
        self.kernels += 1
        self.add(f"kernel {name}", tensors)

    def taken(self) -> Count:
        """Return what was counted since the last time."""
        found = Count(sum(self.of.values()), self.bytes, self.waits, self.kernels, self.of)
        self.of, self.bytes, self.waits, self.kernels = Counter(), 0, 0, 0
        return found


def _tensors(values: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(values)
    return [one for one in leaves if isinstance(one, Tensor)]


def _is_view(one: Tensor, given: list[Tensor]) -> bool:
    return any(one.untyped_storage().data_ptr() == g.untyped_storage().data_ptr() for g in given)


def _picks_by_flags(name: str, args: Any) -> bool:
    if name == "repeat_interleave":
        return True
    flags = (torch.bool, torch.uint8)
    return name in ("index", "index_put", "index_put_") and any(
        isinstance(one, Tensor) and one.dtype in flags for one in args[1]
    )


def _size(x: Tensor) -> int:
    """Return the bytes of the numbers in memory: an expanded dimension repeats the same ones."""
    size = x.element_size()
    for length, stride in zip(x.shape, x.stride(), strict=True):
        size *= length if stride or length == 0 else 1
    return size


@contextlib.contextmanager
def counting() -> Iterator[Tally]:
    """Count while functions run on CPU tensors, on the road of a GPU's."""
    from triton.runtime import interpreter

    from benchmarks.gpu import stand_in
    from kofn.arrays.torch import kept
    from kofn.kernels.gpu.rows import launch as of_rows

    tally, launch = Tally(), interpreter.GridExecutor.__call__
    made_once = kept._made

    def empty(like: Tensor, shape: Any, dtype: Any = None) -> Tensor:
        before, tally.off = tally.off, True
        made = like.new_zeros(shape, dtype=dtype)
        tally.off = before
        return made

    def launch_counted(self: Any, *arguments: Any, **options: Any) -> Any:
        name = self.fn.__name__
        tally.launched(name, _tensors((arguments, options)))
        tally.off = True
        slow = name.endswith("_parts") or ".knapsack." in self.fn.__module__
        if slow:  # a program takes a row, and a good while
            self.grid = (min(8, self.grid[0]),)
        try:
            return launch(self, *arguments, **options)
        finally:
            tally.off = False

    def kept_once(*arguments: Any) -> Any:
        before, tally.off = tally.off, True
        try:
            return made_once(*arguments)
        finally:
            tally.off = before

    def from_host(function: Callable[..., Any]) -> Callable[..., Any]:
        def made(data: Any, *arguments: Any, **options: Any) -> Any:
            if not (isinstance(data, Tensor) or tally.off):
                tally.waits += 1  # memory of the host, which a copy waits for
                tally.add("copy to the device", [])
            return function(data, *arguments, **options)

        return made

    def to_host(function: Callable[..., Any]) -> Callable[..., Any]:
        def read(x: Tensor, *arguments: Any, **options: Any) -> Any:
            tally.waits += 0 if tally.off else 1
            return function(x, *arguments, **options)

        return read

    with contextlib.ExitStack() as stack:
        stack.enter_context(stand_in.for_device())
        for owner, name, wrap in (
            (torch, "tensor", from_host),
            (torch, "as_tensor", from_host),
            (torch, "asarray", from_host),
            (Tensor, "cpu", to_host),
            (Tensor, "tolist", to_host),
            (Tensor, "numpy", to_host),
        ):
            stack.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name))))
        stack.enter_context(mock.patch.object(of_rows, "empty", empty))
        stack.enter_context(mock.patch.object(kept, "_made", kept_once))
        patch = mock.patch.object(interpreter.GridExecutor, "__call__", launch_counted)
        stack.enter_context(patch)
        stack.enter_context(tally)
        yield tally


class Line(NamedTuple):
    """What a function takes: forward, and backward if it learns."""

    function: Function
    forward: Count
    backward: Count | None


def count(function: Function, tally: Tally, rows: int = ROWS, n: int = LENGTH) -> Line:
    """Count one call, and its backward pass."""
    call, leaves = function.make(Draw("cpu", torch.float32, rows, n))
    leaves = tuple(leaf.requires_grad_(function.learns) for leaf in leaves)
    tally.taken()
    out = call(*leaves)
    forward, backward = tally.taken(), None
    if function.learns:
        cotangent = torch.ones_like(out)
        tally.taken()
        torch.autograd.grad(out, leaves, cotangent, allow_unused=True)
        backward = tally.taken()
    return Line(function, forward, backward)


def lines(names: list[str] | None = None, rows: int = ROWS) -> Iterator[Line]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, where the interpreter divides by 0 as planned
        with counting() as tally:
            for function in FUNCTIONS:
                if names is None or function.name in names:
                    yield count(function, tally, rows)


SCORES = ROWS * LENGTH * 4
HEAD = (
    "| Function | launches forward | bytes | waits | backward | bytes | waits | at most | µs "
    "| in a graph |",
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
)
RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"


@lru_cache
def measured() -> dict[str, dict[str, Any]]:
    """Return what `make gpu` measured of each function, from what is kept of it."""
    times = json.loads(RESULTS.read_text(encoding="utf-8"))["times"]
    return {one["function"]: one for one in times if one.get("seconds") and "function" in one}


def row_of(line: Line) -> str:
    def cells(one: Count | None) -> str:
        if one is None:
            return " | | | "
        kernels = f" ({one.kernels})" if one.kernels else ""
        return f" {one.launches:,}{kernels} | {one.bytes / SCORES:,.0f} | {one.waits or ''} |"

    most = f"{line.function.most}" if line.function.most else ""
    known = {} if line.function.name in ANEW else measured()
    times = known.get(line.function.name, {"seconds": {}})
    taken = (times["seconds"].get("forward"), times.get("replayed"))
    both = " | ".join("" if one is None else f"{1e6 * one:,.0f}" for one in taken)
    return f"| {line.function.name} |{cells(line.forward)}{cells(line.backward)} {most} | {both} |"


def table() -> str:
    return "\n".join([*HEAD, *map(row_of, lines())])


def page_with(found: str) -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> None:
    names = [one for one in arguments if not one.startswith("--")] or None
    if "--write" in arguments:
        PAGE.write_text(page_with(table()), encoding="utf-8")
        return
    for line in lines(names):
        print(row_of(line), flush=True)
        if "--names" in arguments:
            for what, one in zip(("forward", "backward"), line[1:], strict=True):
                if one is not None:
                    print(f"    {what}: {dict(one.of.most_common(12))}")


if __name__ == "__main__":
    main(sys.argv[1:])
