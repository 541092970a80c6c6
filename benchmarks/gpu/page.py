"""What `make gpu` says: gpu.md, and the summary at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

Notes = Sequence[dict[str, Any]]


def headline(about: dict[str, Any]) -> str:
    rate = about.get("copy rate")
    copied = f"; a copy moves {rate / 1e12:.2f} TB/s" if rate else ""
    return (
        f"{about['card']}; PyTorch {about['torch']}, Triton {about['triton']}, Python "
        f"{about['python']}, kofn at {about['commit'] or 'an unknown commit'}, {about['date']}"
        f"{copied}."
    )


def counts(tests: Notes) -> str:
    found = Counter(one["outcome"] for one in tests)
    return f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped"


def by_file(tests: Notes) -> Iterator[str]:
    """Yield a line for each test function: how many cases, and how many of them failed."""
    grouped: dict[str, list[str]] = {}
    for one in tests:
        name = one["test"].split("[")[0].split("/")[-1].replace("::", " ")
        grouped.setdefault(name, []).append(one["outcome"])
    for name, outcomes in grouped.items():
        bad = outcomes.count("failed")
        skipped = outcomes.count("skipped")
        state = f"{bad} of {len(outcomes)} failed" if bad else f"{len(outcomes) - skipped} passed"
        yield f"| {name} | {state}{f', {skipped} skipped' if skipped else ''} |"


def milliseconds(one: dict[str, Any], what: str) -> str:
    seconds = one.get("seconds", {}).get(what)
    return "" if seconds is None else f"{1e3 * seconds:.3f}"


def page(
    about: dict[str, Any], tests: Notes, times: Notes, trouble: Sequence[str], over: bool
) -> str:
    lines = ["# On a GPU", "", headline(about), "", f"By `make gpu`. Tests: {counts(tests)}."]
    if not over:
        lines += ["", "**The run was cut, or is not over: this is what it had.**"]
    lines += [f"\n**{one}**" for one in trouble]
    failed = [one for one in tests if one["outcome"] == "failed"]
    if failed:
        lines += ["", "## What is wrong", ""]
        lines += [f"- `{one['test']}`: {_one_line(one['reason'])}" for one in failed]
    lines += ["", "## Tests", "", "| Test | Outcome |", "| --- | --- |", *by_file(tests)]
    skipped = {one["reason"] for one in tests if one["outcome"] == "skipped"}
    lines += [f"\nSkipped: {'; '.join(sorted(skipped))}."] if skipped else []
    lines += [*_functions(times), *_cases(times), *_jax(times)]
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _functions(times: Notes) -> list[str]:
    found = [one for one in times if "function" in one]
    if not found:
        return []
    lines = ["", "## Every function, on 4,096 × 64 float32 scores", ""]
    lines += ["Milliseconds; *replayed* is the forward pass as a CUDA graph.", ""]
    lines += ["| Function | forward | with backward | replayed | MB |", "|---|---:|---:|---:|---:|"]
    for one in found:
        name, replayed, memory = one["function"], one.get("replayed"), one.get("memory")
        if one.get("trouble"):
            lines.append(f"| {name} | {_one_line(one['trouble'])[:80]} | | | |")
            continue
        cells = [milliseconds(one, what) for what in ("forward", "forward + backward")]
        cells += [f"{1e3 * replayed:.3f}" if replayed else ""]
        cells += [f"{memory / 1e6:.1f}" if memory is not None else ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _cases(times: Notes) -> list[str]:
    lines, seen = [], None
    for one in times:
        if "case" not in one:
            continue
        key = one["case"], tuple(one["shape"]), one["dtype"]
        if key != seen:
            seen, (rows, n) = key, one["shape"]
            lines += ["", f"## {one['case'].capitalize()}: {rows:,} × {n:,}, {one['dtype']}", ""]
            lines += ["| | softmaxes | with backward | ms | of the copy's rate | MB |"]
            lines += ["|---|---:|---:|---:|---:|---:|"]
        if one["trouble"]:
            lines.append(f"| {one['name']} | {_one_line(one['trouble'])[:80]} | | | | |")
            continue
        ratios = [f"{one['ratio'][what]:.2f}" for what in ("forward", "forward + backward")]
        memory = one["memory"].get("forward") if one["memory"] else None
        cells = [*ratios, milliseconds(one, "forward"), f"{one['of_copy']:.2f}"]
        cells += [f"{memory / 1e6:.1f}" if memory is not None else ""]
        lines.append(f"| {one['name']} | {' | '.join(cells)} |")
    return lines


def _jax(times: Notes) -> list[str]:
    found = [one for one in times if "jax" in one]
    if not found:
        return []
    said = [f"{one['jax']} {milliseconds(one, 'forward')}" for one in found]
    return ["", "## JAX", "", f"On {found[0]['backend']}, ms forward: {', '.join(said)}."]


def summary(
    about: dict[str, Any], tests: Notes, times: Notes, trouble: Sequence[str], seconds: float
) -> list[str]:
    """Return at most 40 lines: what is wrong, then what is slow."""
    lines = ["", headline(about), f"Tests: {counts(tests)}; {seconds:.0f} s in all."]
    lines += [f"TROUBLE {one}"[:160] for one in trouble]
    failed = [one for one in tests if one["outcome"] == "failed"]
    lines += [f"FAILED {one['test'].split('::')[-1]}: {_one_line(one['reason'])}"[:160]
              for one in failed[:14]]  # fmt: skip
    lines += [f"... and {len(failed) - 14} more"] if len(failed) > 14 else []
    wrong = [one for one in times if one.get("trouble") and one.get("group", "kofn") == "kofn"]
    lines += [f"NOT TIMED {one.get('function') or one.get('name')}: {one['trouble']}"[:160]
              for one in wrong[:5]]  # fmt: skip
    functions = [one for one in times if one.get("seconds") and "function" in one]
    base = next((one for one in functions if one["function"] == "torch.softmax"), None)
    if base is not None:
        unit = base["seconds"]["forward"]
        slow = sorted(functions, key=lambda one: -one["seconds"]["forward"])[:5]
        said = [f"{one['function']} {one['seconds']['forward'] / unit:.0f}" for one in slow]
        lines.append(f"Slowest beside torch.softmax ({1e6 * unit:.0f} µs): {', '.join(said)}"[:160])
    for one in times:
        if "case" in one and one["name"] in ("soft_topk, logistic", "sparsemax") and one["ratio"]:
            rows, n = one["shape"]
            forward, both = (one["ratio"][what] for what in ("forward", "forward + backward"))
            lines.append(
                f"{one['case']} {rows:,} × {n:,} {one['dtype']} {one['name']}: {forward:.2f} and "
                f"{both:.2f} softmaxes, {one['of_copy']:.2f} of a copy"
            )
    done = "WRONG: see gpu.md" if trouble or failed or wrong or not tests else "All is right."
    return [*lines[:39], done]
