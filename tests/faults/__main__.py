"""Plant each fault of the table in a copy of the sources, and see whether a test fails there.

`make faults`, or `python tests/faults`. Each takes as long as its tests need to find it: some ten
seconds, a minute where kernels have to be compiled anew. The tree itself is not changed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from table import FAULTS, Fault

ROOT = Path(__file__).parents[2]
NEEDED = ("src", "tests", "studies", "pyproject.toml")
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python tests/faults", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="faults with this in their names")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    told = parser.parse_args(arguments)
    faults = [fault for fault in FAULTS if (told.only or "") in fault.name]
    if told.list:
        print(*(fault.name for fault in faults), sep="\n")
        return 0
    if not faults:
        parser.error(f"--only must be in the name of a fault; got {told.only!r}")
    return tried(faults, ROOT)


def tried(faults: list[Fault], root: Path, tell: Callable[[str], None] = print) -> int:
    """Plant the faults, one after another; return 1 if one is not caught."""
    missed, catching = 0, set()
    with tempfile.TemporaryDirectory(prefix="kofn-faults-") as store:
        for number, fault in enumerate(faults, 1):
            with copied(root) as tree:
                try:
                    plant(fault, tree)
                    found = tested(tree, fault.tests, Path(store))
                except ValueError as error:
                    found = Run("", 0.0, str(error))
            missed += not found.test
            catching.add(found.test)
            how = f"by {found.test}" if found.test else found.trouble or "by none of its tests"
            word = "caught" if found.test else "MISSED"
            tell(f"{number}/{len(faults)} {word}: {fault.name}: {how}, {found.seconds:.0f} s")
        # A test that fails without the fault, too, has caught nothing.
        with copied(root) as tree:
            found = tested(tree, tuple(sorted(catching - {""})), Path(store))
    if found.test or found.trouble:
        tell(f"without a fault: {found.test or found.trouble}")
    tell(f"{len(faults) - missed} of {len(faults)} caught")
    return int(bool(missed or found.test or found.trouble))


@contextmanager
def copied(root: Path) -> Iterator[Path]:
    """Yield a copy of what tests need, in a folder that goes afterwards.

    Without byte code: Python would take that of another text of the same second for its own.
    """
    with tempfile.TemporaryDirectory(prefix="kofn-faults-") as folder:
        for name in NEEDED:
            if (root / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(root / name, Path(folder, name), ignore=ignored)
            elif (root / name).exists():
                shutil.copy2(root / name, folder)
        yield Path(folder)


def plant(fault: Fault, tree: Path) -> None:
    """Write the fault into a tree; raise ValueError if its old text is not there just once."""
    file = tree / "src" / "kofn" / fault.file
    text = file.read_text(encoding="utf-8")
    if (count := text.count(fault.old)) != 1:
        raise ValueError(f"its old text is {count} times in {fault.file}")
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")


def tested(tree: Path, tests: tuple[str, ...], store: Path) -> Run:
    """Run tests of a tree up to the first that fails; kernels are kept in `store`."""
    if not tests:
        return Run("", 0.0, "")
    begin = time.monotonic()
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", *(f"tests/{name}" for name in tests)],
            cwd=tree,
            env=environment(tree, store),
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
        found = json.loads((tree / ".pytest_cache/v/cache/lastfailed").read_text(encoding="utf-8"))
        return Run(next(iter(found)).removeprefix("tests/"), seconds, "")
    last = (ended.stdout + ended.stderr)[-2000:]
    return Run("", seconds, f"pytest exited with {ended.returncode}: {last}")


def environment(tree: Path, store: Path) -> dict[str, str]:
    """Return an environment in which `import kofn` finds the copy, in processes of tests, too."""
    own = {"PYTHONPATH": str(tree / "src"), "KOFN_CACHE_DIR": str(store), "OMP_NUM_THREADS": "1"}
    return os.environ | own


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
