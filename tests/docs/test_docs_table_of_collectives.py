"""The page's table of collectives is what its command counts in programs that are compiled now.

JAX has eight devices of one processor only in a process that starts so: the command's is one.
"""

from __future__ import annotations

import jax
import pytest
import table_of_collectives as script

from places import ROOT, as_program

FEW = ["jax.nn.softmax", "kofn.softmax", "soft_topk", "hard_topk"]
REST = [name for name in script.FUNCTIONS if name not in FEW]


def test_the_page_has_a_line_for_each_function() -> None:
    head, *lines = script.PART.text.split("| --- | --- | --- | --- |\n")
    assert head.split("JAX")[0] == script.HEAD[0].split("JAX")[0]
    firsts = [line.split(" | ")[0].removeprefix("| ") for line in lines[0].splitlines()]
    assert [each.replace("`", "") for each in firsts] == [*script.FUNCTIONS]


@pytest.mark.skipif(
    f"JAX {jax.__version__}:" not in script.PART.text, reason="the page has another JAX"
)
@pytest.mark.parametrize(
    "names", [FEW, pytest.param(REST, marks=pytest.mark.full)], ids=["few", "rest"]
)
def test_the_page_has_what_is_counted(names: list[str]) -> None:
    run = as_program(str(ROOT / script.PART.command.split()[1]), *names, KOFN_KERNELS="")
    lines = run.stdout.splitlines()
    assert len(lines) == len(names), run.stderr
    assert [line for line in lines if line not in script.PART.text.splitlines()] == []
