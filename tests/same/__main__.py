"""Compare this tree with an older commit: `make same OLD=COMMIT`, or `python tests/same COMMIT`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from typing import Any

import cases
import operations
import sides
from differences import Difference, difference

CONTRACT = (
    *("schemas", "public_signatures", "states", "steps_of_modules", "errors"),
    *("pickles", "loaded_states", "torch_program", "jax_programs", "gpu"),
)
FULL = 40
"""Differences that are printed in full; the others are counted."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python tests/same", description=__doc__)
    parser.add_argument("old", help="the commit that answers are compared with")
    plans = parser.add_mutually_exclusive_group()
    plans.add_argument("--quick", action="store_true", help="each operation in each framework once")
    plans.add_argument(
        "--all", action="store_true", help="hours: the full product where it is cheap"
    )
    parser.add_argument("--only", metavar="NAME", help="cases whose names start so; * is anything")
    parser.add_argument(
        "--strict", action="store_true", help="bits for costs and alpha per row, too"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    parser.add_argument("--raising", action="store_true", help="count the cases that raise in both")
    told = parser.parse_args(arguments)
    level = "quick" if told.quick else "all" if told.all else "usual"
    names = [*(f"contract/{name}" for name in CONTRACT), *map(str, cases.plan(level))]
    if told.only:
        names = cases.chosen(names, told.only) or [str(cases.case_of(told.only))]
    if told.list:
        print(*names, sep="\n")
        return 0
    pair = [sides.frozen(told.old), sides.here()]
    if any(name.startswith("contract/") for name in names):
        (wrote,) = sides.answers(pair[:1], ["contract/write"], 1)
        print("not written by the old side:", *wrote["contract/write"] or ["nothing"], sep="\n  ")
    old, new = sides.answers(pair, names, told.jobs)
    exact = {} if told.strict else exact_answers(pair[0], old, new, told.jobs)
    found = {}
    for name in names:
        true = (lambda name=name: exact[name]) if name in exact else None
        if differs := difference(name, old[name], new[name], true):
            found[name] = differs
    if told.raising:
        tell_raising(old)
    tell(found)
    alike = sum(isinstance(each, tuple) for each in old.values())
    print(f"{len(names)} cases, {alike} of which raise in the old tree; {len(found)} differ:")
    print(dict(Counter(each.kind for each in found.values())) or "none")
    return int(any(each.fails for each in found.values()))


def exact_answers(
    side: sides.Side, old: dict[str, Any], new: dict[str, Any], jobs: int
) -> dict[str, Any]:
    """Return what float64 answers in the cases that differ and are judged by their error."""

    def judged(name: str) -> bool:
        of = operations.OPERATIONS.get(name.split("/")[0])
        kinds = ("group", "axis", "kept", "dtensor", "dtensor_compile")
        return of is not None and of.judged and name.split("/")[1] not in kinds

    names = [name for name in old if judged(name) and difference(name, old[name], new[name])]
    return sides.answers([side], names, jobs, "exact")[0] if names else {}


def tell(found: dict[str, Difference]) -> None:
    """Print examples, then how many differ by operation, framework, link, type, length, order."""
    table: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, each in found.items():
        table[each.kind, *name.split("/")[:6]].append(name)
    for number, (key, names) in enumerate(sorted(table.items())):
        if number == FULL:
            print(f"… and {len(table) - FULL} lines more")
            break
        print(
            f"{key[0]}: {'/'.join(key[1:])}: {len(names)}\n    {names[0]}: {found[names[0]].told}"
        )
    for place, what in ((0, "operation"), (1, "framework"), (2, "link"), (3, "type"), (5, "order")):
        parts = (n.split("/") for n, each in found.items() if each.fails and n.count("/") == 6)
        if counts := Counter(each[place] for each in parts):
            print(f"wrong by {what}: " + ", ".join(f"{a} {n}" for a, n in counts.most_common()))


def tell_raising(old: dict[str, Any]) -> None:
    errors = Counter(
        (*name.split("/")[:2], *(text[:160] for text in each))
        for name, each in old.items()
        if isinstance(each, tuple)
    )
    for key, count in sorted(errors.items()):
        print(count, *key)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
