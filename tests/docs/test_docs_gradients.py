"""The page's table of errors of derivatives: its layout, and a sample of what it was made of."""

from __future__ import annotations

import re

import measure_gradients as measure
import pytest

from test_docs import PAGES


def test_the_page_has_the_tables_that_the_command_prints() -> None:
    page = measure.PART.text
    levels = {level: dict.fromkeys(measure.cases(), measure.NONE) for level in measure.LEVELS}
    number = r"\d(e[+-]\d+)?\b(?!\.)"

    def layout(tables: str) -> str:
        return re.sub(rf"(?<=[|,] ){number}(?=[,| ])", "0", tables)

    assert layout(page) == layout(measure.tables(levels))


def test_the_page_keeps_what_is_promised() -> None:
    by_spread = PAGES["behaviour.md"].partition("| n | spread 0.0001 |")[2].partition("<!-- /")[0]
    rows = [line.split("|")[2:-1] for line in by_spread.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(measure.LENGTHS)
    for row in rows:
        for spread, cell in zip(measure.SPREADS, row, strict=True):
            limit = measure.FAR_BOUND if spread > 1 else measure.BOUND
            assert max(map(float, cell.split(","))) <= limit


@pytest.mark.parametrize("spread", measure.SPREADS)
@pytest.mark.parametrize("link", measure.LINKS)
def test_a_sample_is_within_the_bounds(kernels_on, link: str, spread: float) -> None:
    limit = measure.FAR_BOUND if spread > 1 else measure.BOUND
    for n in (64, 1000):
        assert max(measure.measured(n, spread, link)) <= limit
