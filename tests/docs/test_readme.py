"""Every Python block of the README runs as pasted and prints what it says it prints."""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import re
import tomllib
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
import pytest

from places import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
ARROW = "# ->"


class Block(NamedTuple):
    line: int  # of the README
    code: str


def blocks(text: str) -> list[Block]:
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def promised(lines: list[str], end: int) -> str | None:
    """The text after `# ->` at the end of line `end` (from 1) or on whole lines below it."""
    text = [lines[end - 1].partition(ARROW)[2]]
    for line in lines[end:]:
        if not line.startswith(ARROW):
            break
        text.append(line.removeprefix(ARROW))
    return " ".join(text) if any(text) else None


def run(block: Block) -> list[tuple[str, str]]:
    """Execute the block; (promised, printed) of every statement that promises something."""
    lines = block.code.splitlines()
    names: dict[str, object] = {"__name__": "readme"}
    file = f"<README.md:{block.line} {zlib.crc32(block.code.encode())}>"
    linecache.cache[file] = len(block.code), None, block.code.splitlines(True), file
    pairs = []
    for statement in ast.parse(block.code).body:
        printed = io.StringIO()
        module = ast.Module([statement], type_ignores=[])
        with contextlib.redirect_stdout(printed):
            exec(compile(module, file, "exec"), names)
        promise = promised(lines, statement.end_lineno)
        if promise is not None:
            pairs.append((promise, printed.getvalue()))
    return pairs


def assert_prints(printed: str, promise: str) -> None:
    """Assert that the texts are equal but for white space and, in numbers, the last few bits."""
    number = r"\d+\.?\d*(?:e[+-]?\d+)?"
    texts, numbers = (
        [read(number, " ".join(text.split())) for text in (printed, promise)]
        for read in (re.split, re.findall)
    )
    assert texts[0] == texts[1], (printed, promise)
    np.testing.assert_allclose(*[np.array(each, float) for each in numbers], rtol=1e-14)


@pytest.fixture
def jax_as_installed() -> Iterator[None]:
    """The reader has JAX's default, float32; other tests have float64."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.usefixtures("jax_as_installed")
@pytest.mark.parametrize("block", blocks(README), ids=lambda block: f"line {block.line}")
def test_block_prints_what_it_says(block: Block) -> None:
    for promise, printed in run(block):
        assert_prints(printed, promise)


def test_readme_has_blocks_for_the_three_frameworks() -> None:
    code = "\n".join(block.code for block in blocks(README))
    assert all(f"import {name}" in code for name in ("torch", "jax", "numpy"))


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_line_below_the_title_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    status, python, typed, licence = README.splitlines()[4].split(" · ")
    assert f"Development Status :: 3 - {status[1:6]}" in project["classifiers"]
    assert python == f"Python {project['requires-python'].removeprefix('>=')} or newer"
    assert f"Typing :: {typed.title()}" in project["classifiers"]
    assert (ROOT / "src" / "kofn" / "py.typed").exists()
    assert licence == f"[{project['license']}](LICENSE)"


def test_every_extra_that_pages_and_errors_name_is_one() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    named = re.findall(r'pip install "(?:kofn|\.)\[([a-z,]+)\]', text)
    assert len(named) > 20
    assert {each for names in named for each in names.split(",")} <= {*extras}


def test_what_it_is_for_comes_before_installing_and_times() -> None:
    heads = re.findall(r"^## (.*)$", README, re.MULTILINE)
    assert heads[:4] == ["What it is for", "Install", "In code", "Why not what you use now?"]


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"(?:`|^)make (?:[A-Z_]+=\S+ )?([a-z][a-z-]*)", README, re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    assert [t for t in targets if not re.search(rf"^{t}:", makefile, re.MULTILINE)] == []


def test_what_is_said_of_the_entmax_package() -> None:
    import torch
    from entmax import entmax15, sparsemax

    import kofn

    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for theirs in (entmax15, sparsemax):
        for transformed in (
            lambda f=theirs: torch.func.vmap(lambda row: f(row, dim=-1))(x),
            lambda f=theirs: torch.func.jacrev(lambda row: f(row, dim=-1))(x[0]),
            lambda f=theirs: torch.func.jvp(lambda row: f(row, dim=-1), (x[0],), (x[1],)),
        ):
            with pytest.raises(RuntimeError, match="functorch"):
                transformed()

    def twice(function: Callable) -> torch.Tensor:
        row = (3 * x[0]).requires_grad_()
        once = torch.autograd.grad(function(row).square().sum(), row, create_graph=True)[0]
        return torch.autograd.grad(once[0], row)[0]

    assert twice(lambda row: entmax15(row, dim=-1)).isnan().any()
    assert twice(kofn.entmax).isfinite().all()
