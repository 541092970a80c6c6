"""Take the pictures of docs/explorer.md: `make explorer-figure`, which needs Chromium."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from kofn.commands.explore.page import page

IMAGES = Path(__file__).parent / "images"
# The state that each picture shows, and the height of it.
PICTURES = {
    "explorer.png": ("#x=3.1,2.5,1.7,1.5,1,0.3,-0.5,-1.8&k=3&T=0.5&link=logistic&entry=2", 935),
    "explorer_matrix.png": ("#view=matrix&T=0.2&link=logistic&cell=12", 840),
}


def main() -> None:
    """Draw both views of the page at the width of a laptop."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "explorer.html"
        file.write_text(page(), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, (state, height) in PICTURES.items():
            size = {"width": 1240, "height": height}
            tab = browser.new_page(viewport=size, device_scale_factor=1.25)
            tab.goto(file.as_uri() + state)
            tab.wait_for_selector("#matrix .cell, #weights .weight")
            tab.screenshot(path=IMAGES / name)
            tab.close()
        browser.close()


if __name__ == "__main__":
    main()
