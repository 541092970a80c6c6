"""Output of `kofn bench`: a terminal table, Markdown for the docs, and JSON with all figures."""

from __future__ import annotations

import json
import os
import platform
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

FILES = ("bench.json", "bench.md")
BUSY = 2.0  # softmax's median time over its best, above which the machine counts as busy


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

    def rate(self, timing: Timing) -> float:
        """Return the bytes of scores read and weights written per second, forward."""
        size = self.case.shape[0] * self.case.shape[1] * (4 if self.dtype == "float32" else 2)
        return 2 * size / sorted(timing.seconds["forward"])[len(timing.seconds["forward"]) // 2]


COLUMNS = ("", *PASSES, "ms forward", "GB/s", "extra memory")


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
    ratios = (ratio(*quartiles(timing.ratios[what])) for what in PASSES)
    _, seconds, _ = quartiles(timing.seconds["forward"])
    rate = f"{result.rate(timing) / 1e9:.2f}"
    memory = f"{timing.memory['forward'] / 1e6:.1f}{unit}" if timing.memory else ""
    return timing.contender.name, *ratios, f"{1e3 * seconds:{form}}", rate, memory


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
        "level": os.environ.get("KOFN_CPU") or "the processor's own",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def headline(about: dict[str, Any]) -> str:
    absent = [name for name, version in about["peers"].items() if version is None]
    place = f"{about['processor']}, {about['threads']} of {about['cores']} cores"
    said = (
        f"{about['device'] or place}; "
        f"kofn {about['kofn']}, PyTorch {about['torch']}, Python {about['python']}."
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
    "± half the distance between the quartiles. ms, GB/s (scores read, weights written) and MB "
    "(extra memory) are those of the forward pass."
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
    for name in SHORT_COLUMNS:
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
        lines += ["| " + " | ".join(COLUMNS) + " |", "|---" + "|---:" * (len(COLUMNS) - 1) + "|"]
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
    return (json.dumps(whole, indent=1) + "\n").encode()
