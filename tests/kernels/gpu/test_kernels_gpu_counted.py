"""What functions launch on a GPU, as docs/platforms.md has it."""

import os
import subprocess
import sys

import pytest

from places import ROOT

pytest.importorskip("triton", reason="Triton has no release for this system")


def counted(*names):
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.counted", *names],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.splitlines()


def lines_of_the_page():
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    table = page.partition("counted --write -->")[2].partition("<!-- /launches -->")[0]
    return [line for line in table.splitlines() if line.startswith("|")][2:]


def test_the_page_has_what_is_counted():
    """A few functions here; `python -m benchmarks.gpu.counted --write` counts all."""
    names = ("torch.softmax", "soft_topk", "topk_gates")
    found = counted(*names)
    assert len(found) == len(names)
    page = lines_of_the_page()
    for line in found:
        assert line in page


def test_the_page_has_every_function():
    from benchmarks.gpu.functions import FUNCTIONS

    assert [line.split(" | ")[0][2:] for line in lines_of_the_page()] == [f.name for f in FUNCTIONS]


def test_a_map_is_one_launch_forward_and_one_backward():
    cells = {line.split("|")[1].strip(): line.split("|") for line in lines_of_the_page()}
    for name in ("soft_topk", "softmax", "sparsemax", "entmax"):
        assert cells[name][2].strip() == cells[name][5].strip() == "1 (1)"


ABOVE = {"soft_assignment", "soft_assignment, hard", "soft_assignment_prices"}


def test_what_is_above_its_bound_is_known():
    """The page says below its table what each of these takes."""
    found = set()
    for line in lines_of_the_page():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        launches = [int(cells[i].split()[0].replace(",", "")) for i in (1, 4) if cells[i]]
        if cells[7] and max(launches) > int(cells[7]):
            found.add(cells[0])
    assert found == ABOVE


def test_roads_that_are_new_have_no_times():
    from benchmarks.gpu.published import ANEW

    cells = {line.split("|")[1].strip(): line.split("|") for line in lines_of_the_page()}
    assert all(not "".join(cells[name][9:11]).strip() for name in ANEW)


def test_the_page_has_the_times_that_are_kept():
    """`python -m benchmarks.gpu.published --write` writes them, and README's part of the table."""
    from benchmarks.gpu import published

    for page, text in published.pages().items():
        found = page.read_text(encoding="utf-8")
        assert published.BEGIN in found
        assert text == found
    assert len(list(published.roads())) == len(published.ROADS) + 2
