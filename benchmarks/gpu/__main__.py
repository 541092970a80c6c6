"""`make gpu`: first whether kofn is right on the GPU, then how fast it is.

`python -m benchmarks.gpu --out DIR` needs a Python with PyTorch 2.11 or newer, Triton and NumPy;
what else it needs is in build/gpu-wheels, which `make gpu-wheels` fills. It ends within six
minutes, writes gpu.json and gpu.md as it goes, and last a summary. The status is 1 where anything
is wrong, 2 where it cannot begin. With --device cpu it rehearses all of this without a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WHEELS, UNPACKED = ROOT / "build" / "gpu-wheels", ROOT / "build" / "gpu-site"
FIRST = ("functions", "router", "attention", "losses", "jax", "pruning", "vocabulary")
LAST = ("half", "knapsack", "segments", "compile")
LIMIT = 360.0
FOR_TESTS = 230.0  # at most, of the limit
SAVED = 5.0  # seconds between two states of the files
LINES = 40


def needed() -> list[str]:
    """Return what is missing, each with what to do about it."""
    found = []
    for name, least in (("torch", (2, 11)), ("triton", (3, 6)), ("numpy", (2, 0))):
        if importlib.util.find_spec(name) is None:
            found.append(f"{name} is missing in {sys.executable}; set PYTHON to one that has it")
            continue
        version = __import__(name).__version__
        numbers = version.split("+")[0].split(".")[:2]
        if tuple(map(int, numbers)) < least:
            found.append(f"{name} must be {'.'.join(map(str, least))} or newer; got {version}")
    others = ("pytest", "xdist", "typer", "rich")
    return found + [
        f"{name} is missing: run `make gpu-wheels` where there is a network, and bring "
        "build/gpu-wheels along"
        for name in others
        if importlib.util.find_spec(name) is None
    ]


def unpack() -> None:
    """Unpack the wheels, which need no installation, and import from there."""
    if WHEELS.is_dir():
        for wheel in sorted(WHEELS.glob("*.whl")):
            mark = UNPACKED / f".{wheel.name}"
            if not mark.exists():
                with zipfile.ZipFile(wheel) as packed:
                    packed.extractall(UNPACKED)
                mark.touch()
    for place in (UNPACKED, ROOT / "src", ROOT):
        sys.path.insert(0, str(place))


def described(device: str) -> dict[str, Any]:
    """Return the card and the versions that the figures depend on."""
    import numpy
    import torch
    import triton

    about: dict[str, Any] = dict(
        date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        python=sys.version.split()[0],
        torch=torch.__version__,
        triton=triton.__version__,
        numpy=numpy.__version__,
        cuda=torch.version.cuda,
        cores=os.cpu_count(),
        card="the CPU, in a rehearsal",
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    about["commit"] = commit.stdout.strip() or None
    if device == "cuda":
        found = torch.cuda.get_device_properties(0)
        about |= dict(
            card=found.name,
            capability=f"{found.major}.{found.minor}",
            memory=found.total_memory,
            processors=found.multi_processor_count,
            cache=found.L2_cache_size,
        )
        if shutil.which("nvidia-smi"):
            asked = "driver_version,clocks.sm,clocks.mem,power.limit"
            said = subprocess.run(
                ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"],
                capture_output=True,
                text=True,
            )
            about["nvidia-smi"] = f"{asked}: {said.stdout.strip()}"
    return about


def ours(times: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what of kofn has no time because it is wrong; other libraries may be."""
    return [one for one in times if one.get("trouble") and one.get("group", "kofn") == "kofn"]


class Results:
    """Everything that is known so far, in two files that are whole whenever one looks."""

    def __init__(self, out: Path, about: dict[str, Any]) -> None:
        self.out, self.about = out, about
        self.tests: list[dict[str, Any]] = []
        self.times: list[dict[str, Any]] = []
        self.trouble: list[str] = []
        self.over = False
        self.saved = 0.0
        out.mkdir(parents=True, exist_ok=True)

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [one for one in self.tests if one["outcome"] == "failed"]

    @property
    def wrong(self) -> bool:
        return bool(self.failed or self.trouble or ours(self.times) or not self.tests)

    def save(self, at_once: bool = True) -> None:
        if not at_once and time.monotonic() < self.saved + SAVED:
            return
        self.saved = time.monotonic()
        whole = dict(
            machine=self.about,
            over=self.over,
            wrong=self.wrong,
            trouble=self.trouble,
            tests=self.tests,
            times=self.times,
        )
        put(self.out / "gpu.json", json.dumps(whole, indent=1) + "\n")
        put(self.out / "gpu.md", self.page())

    def page(self) -> str:
        from benchmarks.gpu.page import page

        return page(self.about, self.tests, self.times, self.trouble, self.over)


def put(path: Path, text: str) -> None:
    """Write a file so that one who reads it sees the old one or the new one."""
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, delete=False, encoding="utf-8", prefix=f".{path.name}."
    ) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


class Clock:
    """The seconds that are left."""

    def __init__(self, limit: float) -> None:
        self.end = time.monotonic() + limit

    @property
    def left(self) -> float:
        return self.end - time.monotonic()


def environment(device: str) -> dict[str, str]:
    places = (UNPACKED, ROOT / "src", ROOT, ROOT / "tests" / "gpu")
    found = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "KOFN_GPU": device,
        "PYTHONPATH": os.pathsep.join([*map(str, places), os.environ.get("PYTHONPATH", "")]),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    if device == "cpu":
        found["TRITON_INTERPRET"] = "1"
    return found


def follow(
    command: list[str], device: str, seconds: float, into: Path, told: Any, more: dict[str, str]
) -> str:
    """Run a command, tell each line that it writes to a file; return why it ended early, or ""."""
    log = into.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(device) | more,
            stdout=output if more else into.open("w"),
            stderr=subprocess.STDOUT if more else output,
            start_new_session=True,
        )
        end, place, ended = time.monotonic() + seconds, 0, ""
        while True:
            finished = process.poll() is not None
            place = _tell(into, place, told)
            if finished:
                break
            if time.monotonic() > end:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                place = _tell(into, place, told)
                ended = f"stopped after {seconds:.0f} s"
                break
            time.sleep(0.2)
    if not ended and process.returncode not in (0, 1):
        ended = f"status {process.returncode}: {_last_words(log)}"
    return ended


def _tell(path: Path, place: int, told: Any) -> int:
    """Tell the lines that are whole; return where the next one begins."""
    if not path.exists():
        return place
    with path.open("rb") as file:
        file.seek(place)
        for line in file:
            if not line.endswith(b"\n"):
                break
            place += len(line)
            if line.startswith(b"{"):
                told(json.loads(line))
    return place


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-400:]


def test(results: Results, device: str, clock: Clock, given: argparse.Namespace) -> None:
    """Run tests/gpu, in as many processes as cores, and note each outcome."""
    work = Path(tempfile.mkdtemp())
    notes = work / "notes"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-c", "tests/gpu/pytest.ini"),
        *("--rootdir", "tests/gpu", "--confcutdir", "tests/gpu", "-p", "benchmarks.gpu.noted"),
        *("-p", "xdist", "-n", str(given.workers), "--dist", "worksteal", "tests/gpu"),
    ]
    command += ["-k", given.only] if given.only else []
    # Entry points of other plugins are not for these tests; the ones that are, are named.
    more = {"KOFN_GPU_NOTES": str(notes), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def told(note: dict[str, Any]) -> None:
        results.tests.append(note)
        results.save(at_once=False)
        if note["outcome"] == "failed":
            print(f"FAILED {note['test']}: {note['reason'].splitlines()[0:1]}", flush=True)

    seconds = min(given.for_tests, clock.left - 10)
    ended = follow(command, device, seconds, notes, told, more)
    if ended:
        results.trouble.append(f"tests: {ended}")
    if not results.tests:
        results.trouble.append(f"no test ran: {_last_words(notes.with_suffix('.log'))}")
    shutil.copy(notes.with_suffix(".log"), results.out / "gpu-tests.log")


def measure(results: Results, device: str, clock: Clock, given: argparse.Namespace) -> None:
    """Time as much as there is time for, the most telling first."""
    wanted = given.times.split(",") if given.times else [*FIRST, *LAST]
    begun = ""

    def told(note: dict[str, Any]) -> None:
        nonlocal begun
        if "begun" in note:
            begun = note["begun"]
            print(f"timing {begun}", flush=True)
        elif "card" in note:
            results.about["copy rate"] = note["copy_rate"]
        elif "done" in note:
            wanted.remove(note["done"])
        else:
            results.times.append(note)
        results.save(at_once=False)

    while wanted and clock.left > 15:
        begun = ""
        work = Path(tempfile.mkdtemp()) / "times"
        command = [sys.executable, "-m", "benchmarks.gpu.timed", *wanted]
        ended = follow(command, device, clock.left - 5, work, told, {})
        if ended.startswith("stopped"):
            break
        if ended:
            results.trouble.append(f"times of {begun or wanted[0]}: {ended}")
            wanted.remove(begun or wanted[0])  # the next process goes on behind it
    if wanted:
        results.about["not timed"] = list(wanted)
        print(f"no time was left for: {', '.join(wanted)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds")
    parser.add_argument("--for-tests", type=float, default=FOR_TESTS, help="seconds of these")
    parser.add_argument("--workers", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--only", default="", help="tests, as pytest's -k")
    parser.add_argument("--times", default="", help="what to time, by commas; none for nothing")
    given = parser.parse_args()
    clock = Clock(given.limit)
    unpack()
    missing = needed()
    if missing:
        print("\n".join(f"make gpu: {one}" for one in missing), file=sys.stderr)
        return 2
    import torch

    if given.device == "cuda" and not torch.cuda.is_available():
        print(
            f"make gpu: PyTorch {torch.__version__} finds no CUDA device here "
            "(torch.cuda.is_available() is False); DEVICE=cpu rehearses without one",
            file=sys.stderr,
        )
        return 2
    results = Results(given.out, described(given.device))
    results.save()
    print(f"{results.about['card']}: tests first, then times; at most {given.limit:.0f} s")
    test(results, given.device, clock, given)
    if given.times != "none":
        measure(results, given.device, clock, given)
    results.over = True
    results.save()
    from benchmarks.gpu.page import summary

    seconds = given.limit - clock.left
    lines = summary(results.about, results.tests, results.times, results.trouble, seconds)
    print("\n".join(lines[:LINES]))
    return int(results.wrong)


if __name__ == "__main__":
    sys.exit(main())
