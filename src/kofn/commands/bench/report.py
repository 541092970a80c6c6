"""Output of `kofn bench`: a terminal table, Markdown for the docs, and JSON with all figures."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy
import torch
from rich import box
from rich.markup import escape
from rich.table import Table

import kofn
from kofn.commands.bench.cases import Case
from kofn.commands.bench.contenders import installed
from kofn.commands.bench.devices import Device, described
from kofn.commands.bench.measure import PASSES, Timing, clock, quartiles, slowdown
from kofn.kernels.cpu.runtime import library

FILES = ("bench.json", "bench.md")
BUSY = 2.0  # torch.softmax's median time over its best, above which the machine counts as busy


@dataclass(frozen=True)
class Result:
    """The timings of one case in one dtype."""

    case: Case
    dtype: str
    copy_rate: float  # bytes per second
    timings: Sequence[Timing]

    @property
    def title(self) -> str:
        rows, n = self.case.shape
        return f"{self.case.name}: {rows:,} × {n:,}, k = {self.case.k:,}, {self.dtype}"

    @property
    def warning(self) -> str:
        """Return a warning if the machine was busy, else an empty string."""
        slower = slowdown(self.timings)
        if slower < BUSY:
            return ""
        return (
            f"The machine was busy: softmax itself took {slower:.1f} times its best. "
            "Run this again when the machine is idle."
        )

    @property
    def time(self) -> tuple[str, str, float]:
        """Return the time that stands in the table, its unit, and how many are a second."""
        rows, n = self.case.shape
        if self.case.name == "floor":
            return "ns per entry", "ns", 1e9 / (rows * n)
        if self.case.name == "calls":
            return "µs forward", "µs", 1e6
        return "ms forward", "ms", 1e3

    def rate(self, timing: Timing) -> float:
        """Return the bytes of scores read and weights written per second, forward."""
        size = self.case.shape[0] * self.case.shape[1] * (4 if self.dtype == "float32" else 2)
        return 2 * size / sorted(timing.seconds["forward"])[len(timing.seconds["forward"]) // 2]


def columns(result: Result) -> tuple[str, ...]:
    return ("", *PASSES, result.time[0], "GB/s", "extra memory")


def cells(result: Result, timing: Timing) -> tuple[str, ...]:
    """Return one row of the Markdown table."""

    def ratio(low: float, middle: float, high: float) -> str:
        return f"{middle:.2f} ({low:.2f}–{high:.2f})"

    trouble = shorten(timing.trouble, 32, placeholder="…")
    return _row(result, timing, trouble, ratio, ".3f", " MB")


def _row(
    result: Result, timing: Timing, trouble: str, ratio: Callable[..., str], form: str, unit: str
) -> tuple[str, ...]:
    """Return a name and its ratios, and the milliseconds, GB/s and MB of the forward pass."""
    if timing.trouble:
        return timing.contender.name, trouble, "", "", "", ""
    ratios = (
        ratio(*quartiles(timing.ratios[what])) if what in timing.ratios else "" for what in PASSES
    )
    _, seconds, _ = quartiles(timing.seconds["forward"])
    rate = f"{result.rate(timing) / 1e9:.2f}"
    memory = f"{timing.memory['forward'] / 1e6:.1f}{unit}" if timing.memory else ""
    return timing.contender.name, *ratios, f"{result.time[2] * seconds:{form}}", rate, memory


def machine(threads: int, device: Device | None = None) -> dict[str, Any]:
    """Describe the machine and the versions that the figures depend on."""
    return {
        "kofn": kofn.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "device": described(device),
        "peers": installed("cpu" if device is None else device.name),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "clock": clock()[0],
        "kernels": os.environ.get("KOFN_KERNELS", "on"),
        "level": os.environ.get("KOFN_CPU") or (library.served() or ["the processor's own"])[-1],
        "level_of_torch": torch.backends.cpu.get_cpu_capability(),
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Return the commit of a checkout, with a "+" if its files have changed since; else None."""
    git = ["git", "-C", str(Path(kofn.__file__).parent)]
    try:
        listed = _said(*git, "ls-files", "--error-unmatch", "__init__.py")
        changed = _said(*git, "status", "--porcelain", ".")
        return (
            _said(*git, "rev-parse", "--short=10", "HEAD") + "+" * bool(changed) if listed else None
        )
    except (OSError, subprocess.SubprocessError):  # there is no git, or no checkout
        return None


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def headline(about: dict[str, Any]) -> str:
    absent = [name for name, version in about["peers"].items() if version is None]
    place = f"{about['processor']}, {about['threads']} of {about['cores']} cores, {about['level']}"
    commit = f" ({about['commit']})" if about["commit"] else ""
    said = (
        f"{about['device'] or place}; "
        f"kofn {about['kofn']}{commit}, PyTorch {about['torch']} ({about['level_of_torch']}), "
        f"Python {about['python']}."
    )
    if about["clock"] != "time" and not about["device"]:
        said += " Times are those of the processor."
    if absent:
        said += f" Not installed, so not timed: {', '.join(absent)}."
    return said


EXPLANATION = (
    "Time divided by that of the framework's softmax, timed just before on the same scores: median "
    "(quartiles). GB/s counts one read of the scores and one write of the weights."
)


SHORT_EXPLANATION = (
    "Time divided by that of the framework's softmax, timed just before on the same scores: median "
    "± half the distance between the quartiles. ms (µs, ns per entry), GB/s (scores read, weights "
    "written) and MB (extra memory) are those of the forward pass."
)
SHORT_COLUMNS = ("", "forward", "with backward", "ms", "GB/s", "MB")


def short_cells(result: Result, timing: Timing) -> tuple[str, ...]:
    """Return one row of the terminal table, which is 80 columns wide."""

    def ratio(low: float, middle: float, high: float) -> str:
        digits = 2 if middle < 10 else 1 if middle < 100 else 0
        return f"{middle:.{digits}f} ±{(high - low) / 2:.{digits}f}"

    return _row(result, timing, "not timed", ratio, ".4g", "")


def as_rich(result: Result) -> Table:
    """Return a case's table, 80 columns wide, with the failures listed below it."""
    table = Table(
        title=result.title,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    for name in (*SHORT_COLUMNS[:3], result.time[1], *SHORT_COLUMNS[4:]):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for timing in result.timings:
        table.add_row(*short_cells(result, timing))
    below = [f"A copy of the scores: {result.copy_rate / 1e9:.1f} GB/s."]
    below += [
        f"{each.contender.name} was not timed: {shorten(each.trouble, 120, placeholder='…')}."
        for each in result.timings
        if each.trouble
    ]
    table.caption = escape("\n".join([*below, result.warning]).rstrip() + "\n")
    return table


def as_markdown(about: dict[str, Any], results: Sequence[Result]) -> bytes:
    lines = [f"{headline(about)} By `kofn bench`.", "", EXPLANATION]
    for result in results:
        lines += ["", f"### {result.title.capitalize()}", ""]
        heads = columns(result)
        lines += ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
        lines += ["| " + " | ".join(cells(result, timing)) + " |" for timing in result.timings]
        lines += ["", f"A copy of the scores: {result.copy_rate / 1e9:.1f} GB/s."]
        lines += ["", result.warning] if result.warning else []
    return ("\n".join(lines) + "\n").encode()


def _short(timings: dict[str, list[float]]) -> dict[str, list[float]]:
    """Round to four digits, more than a timing is accurate to."""
    return {what: [float(f"{one:.4g}") for one in every] for what, every in timings.items()}


def as_json(about: dict[str, Any], results: Sequence[Result]) -> bytes:
    def timing(each: Timing) -> dict[str, Any]:
        return {
            "name": each.contender.name,
            "group": each.contender.group,
            "framework": each.contender.framework,
            "trouble": each.trouble or None,
            "seconds": _short(each.seconds),
            "ratio_to_softmax": _short(each.ratios),
            "extra_bytes": each.memory or None,
        }

    def result(each: Result) -> dict[str, Any]:
        return {
            "case": each.case.name,
            "shape": each.case.shape,
            "k": each.case.k,
            "dtype": each.dtype,
            "copy_bytes_per_second": each.copy_rate,
            "softmax_over_its_best": round(slowdown(each.timings), 2),
            "contenders": [timing(one) for one in each.timings],
        }

    whole = {"machine": about, "results": [result(each) for each in results]}
    return (_NUMBERS.sub(_on_one_line, json.dumps(whole, indent=1)) + "\n").encode()


_NUMBERS = re.compile(r'\[[^][{}"]*\]')


def _on_one_line(numbers: re.Match[str]) -> str:
    return re.sub(r"\s+", " ", numbers[0]).replace("[ ", "[").replace(" ]", "]")
