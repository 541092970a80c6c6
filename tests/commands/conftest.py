"""What tests of all subcommands share."""

import numpy as np
import pytest

from called import less_to_time


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Go to a folder with scores and a table."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    less_to_time(monkeypatch.setattr)
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.normal(size=(4, 50)))
    rows = rng.normal(size=(40, 3)).round(3).tolist()
    lines = [",".join(map(str, [*row, "yn"[row[0] > 0]])) for row in rows]
    (folder / "table.csv").write_text("\n".join(["a,b,c,label", *lines, ""]))
    return folder
