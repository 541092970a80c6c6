"""The examples at the end of each subcommand's help, and what `kofn --help` says to try first."""

from __future__ import annotations


def shown(heading: str, *lines: str) -> str:
    """Return a heading and indented lines; empty ones keep the help's formatter from joining them.

    It removes the indent that all lines but the first have; so the heading is not the first.
    """
    return "\n" + "\n\n".join([heading, *(f"  {line}" for line in lines)])


FIRST = "\n\n".join(
    (
        shown(
            "Try first:",
            'echo "2 1 0.5 -1" | kofn apply -k 2      weights that sum to 2',
            'echo "2 1 0.5 -1" | kofn compare -k 2    all links and maps side by side',
            "kofn explore                             scores, k and temperature by hand",
        ),
        shown(
            "Exit status:",
            "0  done",
            "1  the system failed: a full disk, no memory, a closed pipe",
            "2  something you can mend: an option, a file, a value",
            "130, 143  interrupted (Ctrl-C), terminated",
        ),
    )
)

EXAMPLES = {
    "select": shown(
        "Examples:",
        "kofn select --splits 2 --steps 100",
        "kofn select data.csv --target price -k 5",
        "kofn select data.csv --target price -k 5 --missing median --json",
    ),
    "compare": shown(
        "Examples:",
        'echo "2 1 0.5 -1" | kofn compare -k 2',
        "kofn compare scores.csv -k 2 --support 3 --force",
        "kofn compare scores.npy -k 2 --json | jq '.maps[].means'",
    ),
    "apply": shown(
        "Examples:",
        'echo "2 1 0.5 -1" | kofn apply -k 2',
        "kofn apply scores.csv -k 2 --support 3 --out weights.csv",
        "kofn apply scores.npy -k 1000 --out weights.npy",
        "kofn apply scores.npy -k 1000 --hard --dtype bool --out chosen.npy",
        "kofn apply scores.npy -k 1000 --threshold-only --json",
    ),
    "explore": shown("Examples:", "kofn explore", "kofn explore --out explorer.html"),
    "warm": shown("Examples:", "kofn warm", "kofn warm --json"),
    "bench": shown(
        "Examples:",
        "kofn bench --case router --rounds 11",
        "kofn bench --case losses --threads 1 --out results",
        "kofn bench --case vocabulary --dtype bfloat16 --json",
    ),
}
