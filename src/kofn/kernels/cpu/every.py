"""All compiled functions that a link and a precision need, to have them before they are called."""

from __future__ import annotations

from collections.abc import Iterable

from kofn.kernels.cpu.choice import launch as choice
from kofn.kernels.cpu.knapsack import launch as knapsack
from kofn.kernels.cpu.passes import blocks, noise, segments, sums
from kofn.kernels.cpu.rows import launch, layout
from kofn.kernels.cpu.rows.passes import PASSES, SUMS
from kofn.kernels.cpu.runtime import half, openmp, own
from kofn.kernels.cpu.runtime.native import Code
from kofn.kernels.cpu.subsets import launch as subsets


def functions(kinds: Iterable[int], sizes: Iterable[int]) -> list[Code]:
    """Return the code that rows and k-subsets need, for links by number and bytes per number."""
    codes = [openmp.TEAM, *half.codes()]
    kinds = list(kinds)
    for size in sizes:
        codes += [*launch.codes(kinds, size), *own.CODES]
        codes += [subsets.code_of(module, size) for module in ("sums", "sampling")]
        codes += choice.codes(size)
        codes += noise.codes(kinds, size)
        codes += knapsack.codes(kinds, size)
        codes += segments.codes(size)
        codes.append(blocks.code_of(size))
        codes += [sums.WORK, *(each.code(part, size) for each in SUMS for part in sums.PASSES)]
        codes += [code for each in PASSES for kind in kinds for code in each.codes(kind, size)]
    return list(dict.fromkeys(codes))


def ship() -> None:
    """Translate those again that have changed, for `make kernels`."""
    from kofn.kernels.cpu.compiler import digests, now, shipped

    every = functions(layout.SERVED, (4, 8))
    kept = {code.symbol: known for code in every if (known := shipped.found(code))}
    changed = [code for code in every if code.symbol not in kept]
    new = {code.symbol: (digests.of_code(code), now.by_numba(code)) for code in changed}
    shipped.write({**kept, **new})
    print(f"{shipped.FILE}: {len(changed)} of {len(every)} functions translated")
