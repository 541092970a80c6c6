"""A fault on trial: it is planted in a copy of a tree, and tests are run there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

from table import Fault

NEEDED = ("docs", "src", "tests", "studies", "wheels", "pyproject.toml")
"""What the tests of the table need."""
LIMIT = 1800
"""Seconds after which a run of tests is given up."""
FAILED = 1
"""How pytest exits if a test failed; the other numbers say that it could not run them."""


class Run(NamedTuple):
    """What a run of tests told."""

    test: str  # that failed; "" if none did
    seconds: float
    trouble: str  # why it is no answer; "" if it is one


def tried(faults: Sequence[Fault], root: Path, tell: Callable[[str], None] = print) -> int:
    """Plant the faults, one after another; return 1 if one is not caught."""
    missed, catching = 0, set()
    with tempfile.TemporaryDirectory(prefix="kofn-faults-") as folder:
        tree = copied(root, Path(folder))
        for number, fault in enumerate(faults, 1):
            try:
                with planted(fault, tree):
                    found = tested(tree, fault.tests)
            except ValueError as error:
                found = Run("", 0.0, str(error))
            missed += not found.test
            catching.add(found.test)
            how = f"by {found.test}" if found.test else found.trouble or "by none of its tests"
            word = "caught" if found.test else "MISSED"
            tell(f"{number}/{len(faults)} {word}: {fault.name}: {how}, {found.seconds:.0f} s")
        # A test that fails without the fault, too, has caught nothing.
        found = tested(tree, sorted(catching - {""}))
    if found.test or found.trouble:
        tell(f"without a fault: {found.test or found.trouble}")
    tell(f"{len(faults) - missed} of {len(faults)} caught")
    return int(bool(missed or found.test or found.trouble))


def copied(root: Path, folder: Path) -> Path:
    """Copy what tests need to a folder, and return that."""
    for name in NEEDED:
        if (root / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / name, folder / name, ignore=ignored)
        elif (root / name).exists():
            shutil.copy2(root / name, folder)
    return folder


@contextmanager
def planted(fault: Fault, tree: Path) -> Iterator[None]:
    """Have the fault in a tree; raise ValueError if its old text is not there just once."""
    file = tree / "src" / "kofn" / fault.file
    text = file.read_text(encoding="utf-8")
    if (count := text.count(fault.old)) != 1:
        raise ValueError(f"its old text is {count} times in {fault.file}")
    try:
        _write(file, text.replace(fault.old, fault.new))
        yield
    finally:
        _write(file, text)


def _write(file: Path, text: str) -> None:
    """Write a source; Python would take byte code of the same second and size for its own."""
    file.write_text(text, encoding="utf-8")
    Path(cache_from_source(file)).unlink(missing_ok=True)


def tested(tree: Path, tests: Sequence[str]) -> Run:
    """Run tests of a tree up to the first that fails; kernels are kept beside it."""
    if not tests:
        return Run("", 0.0, "")
    told = tree / ".pytest_cache/v/cache/lastfailed"
    told.unlink(missing_ok=True)
    places = {path.name: str(path) for path in tree.glob("tests/**/test_*.py")}
    files = [places[file] + test for file, test in map(_parts, tests)]
    begin = time.monotonic()
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", *files],
            cwd=tree,
            env=environment(tree),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return Run("", time.monotonic() - begin, f"no end within {LIMIT} s")
    seconds = time.monotonic() - begin
    if ended.returncode == 0:
        return Run("", seconds, "")
    if ended.returncode == FAILED:
        found = json.loads(told.read_text(encoding="utf-8"))
        return Run(next(iter(found)).removeprefix("tests/"), seconds, "")
    last = (ended.stdout + ended.stderr)[-2000:]
    return Run("", seconds, f"pytest exited with {ended.returncode}: {last}")


def _parts(name: str) -> tuple[str, str]:
    """Split "maps/test_x.py::test_y", or less, into the file's name and the rest."""
    path, mark, test = name.partition("::")
    return path.rpartition("/")[2], mark + test


def environment(tree: Path) -> dict[str, str]:
    """Return an environment in which `import kofn` finds the copy, in processes of tests, too."""
    own = {
        "PYTHONPATH": str(tree / "src"),
        "OMP_NUM_THREADS": "1",
    }
    others = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return others | own
