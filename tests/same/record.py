"""Write the answers of cases to a file: `python record.py FILE < names`, in either side's process.

Only what is public runs here, so that the same file serves the old sources and the new ones. A case
that raises answers with its error.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error).__name__, str(error)


def main(file: Path, names: list[str]) -> None:
    warnings.simplefilter("ignore")
    from cases import case_of

    import kofn

    source = os.environ["SAME_SOURCE"]
    assert kofn.__file__.startswith(source), f"kofn is that of {kofn.__file__}, not of {source}"
    found: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    kind = names[0].split("/")[1]
    if names[0].startswith("contract/"):
        import contract

        found = {name: attempt(contract.TASKS[name]) for name in names}
    elif kind in ("group", "dtensor", "dtensor_compile"):
        import shards

        found = shards.on_ranks(names)
    else:
        import frameworks

        run = frameworks.exact if file.stem.startswith("exact") else frameworks.answers
        if kind == "axis":
            import shards

            run = shards.on_axis
        for name in names:
            start = time.process_time()
            found[name] = attempt(lambda name=name: run(case_of(name)))
            seconds[name] = time.process_time() - start
            if "SAME_TIMES" in os.environ:
                print(f"{seconds[name]:.2f} {name}", file=sys.stderr, flush=True)
    with open(file, "wb") as written:
        pickle.dump((found, seconds), written)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.stdin.read().split())
