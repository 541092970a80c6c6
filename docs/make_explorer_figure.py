"""Take the picture of docs/explorer.md: `make explorer-figure`, which needs Chromium."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from kofn.commands.explore.page import page

FILE = Path(__file__).parent / "images" / "explorer.png"
STATE = "#x=3.1,2.5,1.7,1.5,1,0.3,-0.5,-1.8&k=3&T=0.5&link=logistic&entry=2"


def main() -> None:
    """Draw the page as it opens, at the width of a laptop."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "explorer.html"
        file.write_text(page(), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1240, "height": 935}, device_scale_factor=1.25)
        tab.goto(file.as_uri() + STATE)
        tab.wait_for_selector("#weights .weight")
        tab.screenshot(path=FILE)
        browser.close()


if __name__ == "__main__":
    main()
