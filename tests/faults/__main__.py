"""Plant each fault of the table in a copy of the sources, and see whether a test fails there.

`make faults`, or `python tests/faults`. Each takes as long as its tests need to find it: some ten
seconds, a minute or two where kernels have to be translated anew. The tree itself is not changed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from table import FAULTS
from trial import tried


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
    return tried(faults, Path(__file__).parents[2])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
