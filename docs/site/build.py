"""Build the documentation as a site: write its pages, render them by MkDocs, finish the HTML.

python docs/site/build.py site
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import finish
import pages

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    site, folder = Path(sys.argv[1]).resolve(), ROOT / "build" / "pages"
    pages.write(folder)
    settings = folder.with_name(pages.SETTINGS)
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "--quiet", "build", "-f", settings, "--site-dir", site],
        check=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    finish.finish(site)


if __name__ == "__main__":
    main()
