"""The two sides: the frozen sources of a commit and those of this tree, and their answers on disk.

Everything is under build/same: COMMIT/tree has the sources, COMMIT/cache the compiled code,
COMMIT/saved what the old side wrote for the new one to read, COMMIT/answers what it answered, which
is kept. `new` has the same of a copy of this tree, whose answers are taken again each time.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STORE = ROOT / "build" / "same"
CASES_AT_ONCE = {"numpy": 2000, "torch": 700, "func": 300, "jax": 120, "jit": 60, "compile": 80}
# As in conftest.py, and two devices for shards: compiling takes longer than running here.
XLA = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_force_host_platform_device_count=2"
)


class Side(NamedTuple):
    """Sources, and the folder of what they leave behind."""

    source: Path
    store: Path
    keeps: bool

    def environment(self, saved: Path) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self.source),
            "SAME_SOURCE": str(self.source),
            "SAME_SAVED": str(saved),
            "KOFN_CACHE_DIR": str(self.store / "cache"),
            "KOFN_CPU": os.environ.get("KOFN_CPU", "x86-64-v3"),
            "KOFN_KERNELS": "",
            "KOFN_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "XLA_FLAGS": XLA,
        }


def frozen(commit: str) -> Side:
    """Return the side of a commit, whose sources are taken from git once."""
    full = _git("rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
    store = STORE / full[:12]
    tree = store / "tree"
    if not tree.exists():
        made = store / f"tree.{os.getpid()}"
        with tarfile.open(fileobj=io.BytesIO(_git("archive", full, "src", "tests"))) as archive:
            archive.extractall(made, filter="data")
        made.rename(tree)
    runtime = (tree / "src/kofn/kernels/cpu/runtime").glob("*.py")
    if not any("KOFN_CPU" in file.read_text("utf-8") for file in runtime):
        raise SystemExit(f"{commit} has no KOFN_CPU: its answers depend on the machine")
    return _ready(Side(tree / "src", store, True))


def here() -> Side:
    """Return the side of this tree as it is now; what is edited meanwhile counts the next time."""
    tree = STORE / "new" / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "signatures.txt", tree / "tests")
    return _ready(Side(tree / "src", STORE / "new", False))


def _ready(side: Side) -> Side:
    for name in ("saved", "answers", "cache"):
        (side.store / name).mkdir(parents=True, exist_ok=True)
    return side


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def units(names: Iterable[str]) -> list[list[str]]:
    """Cut names into the work of one process each: one framework, and not too much."""
    kinds = defaultdict(list)
    for name in names:
        operation, framework, *_ = name.split("/")
        kinds[name if operation == "contract" else framework].append(name)
    found = []
    for kind, members in kinds.items():
        most = CASES_AT_ONCE.get(kind, 400)
        found += [members[i : i + most] for i in range(0, len(members), most)]
    return sorted(found, key=len, reverse=True)


def answers(
    sides: Sequence[Side], names: list[str], jobs: int, prefix: str = "of"
) -> list[dict[str, Any]]:
    """Return what each side answers, by name; `exact` answers have that prefix."""
    saved = sides[0].store / "saved"
    work = [(side, unit) for unit in units(names) for side in sides]
    found: list[dict[str, Any]] = [{} for _ in sides]
    with ThreadPoolExecutor(jobs) as pool:
        runs = [pool.submit(_run, side, unit, prefix, saved) for side, unit in work]
        for (side, unit), run in zip(work, runs, strict=True):
            found[sides.index(side)].update(run.result())
            print(f"{side.store.name}: {unit[0]} and {len(unit) - 1} others", file=sys.stderr)
    return found


def _run(side: Side, names: list[str], prefix: str, saved: Path) -> dict[str, Any]:
    recorder = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))
    told = f"{os.environ.get('KOFN_CPU')} {sys.version} {names}".encode()
    digest = hashlib.sha256(recorder + told).hexdigest()[:16]
    file = side.store / "answers" / f"{prefix}-{digest}.pkl"
    if not (side.keeps and file.exists()):
        own = {"TRITON_INTERPRET": "1"} if names[0] == "contract/gpu" else {}
        run = subprocess.run(
            [sys.executable, str(HERE / "record.py"), str(file)],
            input="\n".join(names),
            env=side.environment(saved) | own,
            cwd=side.store,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            told_by = run.stderr[-2000:]
            return dict.fromkeys(names, ("no process", f"{run.returncode}: {told_by}"))
    with open(file, "rb") as read:
        return pickle.load(read)[0]
