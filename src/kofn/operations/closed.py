"""Operations by array code, with first derivatives in closed form for eager torch.

These derivatives avoid the Newton steps of `formulas/implicit.py`. docs/formulas.md derives them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kofn.arrays.kinds import Array
from kofn.formulas.pullbacks import in_rows
from kofn.operations.operation import Operation
from kofn.operations.signatures import ROWS
from kofn.rows.given import Given
from kofn.rows.settled import rows_of


def closed(
    gives: str, reference: Callable[..., Array], in_z: Callable[..., Array], *takes: str
) -> Operation:
    """Declare `reference`, whose cotangent of z = (x − θ)/T is in_z(cotangent, placed, rows, …).

    In the place of kernels it takes a function that finds θ: theta_of(rows, over).
    """
    arrays = "".join(f", {each}" for each in takes)
    kind = gives.partition(" ")[2]

    def kernel(theta_of: Callable[..., Any], given: Given, *constants: Array) -> Any:
        rows, over = rows_of(given), given.over
        theta = theta_of(rows, over)
        return reference(rows, *constants, over=over, theta=theta), *theta

    def back(_: object, given: Given, cotangent: Array, *known: Array) -> tuple[Array, Array]:
        *constants, hi, lo = known
        return in_rows(cotangent, rows_of(given), (hi, lo), in_z, constants, given.over)

    return Operation(
        name="",
        takes=f"x n{arrays}, k #, t #, link",
        gives=f"{gives}, hi r, lo r",
        of=ROWS,
        kernel=kernel,
        reference=reference,
        back=(
            Operation(
                name="",
                takes=f"cotangent {kind}, x n{arrays}, hi r, lo r, k #, t #, link",
                gives="x n, t r",
                of=ROWS,
                kernel=back,
                elementwise=True,
            ),
        ),
        constant=("k", "alpha"),
        elementwise=True,
    )
