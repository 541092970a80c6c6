"""The archives of a release: `python -m wheels`; or some wheels: `python -m wheels musl-x86_64`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from wheels.platforms import PLATFORMS

ROOT = Path(__file__).parents[1]
PURE = "none"
"""The wheel without a library, which pip takes where no other fits."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the wheel of each platform, or the source archive and all wheels."""
    parser = argparse.ArgumentParser(prog="python -m wheels", description="Build wheels of kofn.")
    every = *PLATFORMS, PURE
    parser.add_argument("platforms", nargs="*", metavar="platform", help=f"of {', '.join(every)}")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder; dist")
    chosen = parser.parse_args(arguments)
    unknown = sorted({*chosen.platforms} - {*every})
    if unknown:
        parser.error(f"platform must be one of {', '.join(every)}; got {', '.join(unknown)}")
    if not chosen.platforms:
        _build("sdist", chosen.out)
    for name in chosen.platforms or every:
        _build("wheel", chosen.out, name)


def _build(target: str, out: Path, platform: str = PURE) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out.resolve())]
    environment = os.environ | {"KOFN_PLATFORM": platform}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


if __name__ == "__main__":
    main()
