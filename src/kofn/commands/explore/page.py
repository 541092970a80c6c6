"""Joining the explorer's pieces into one HTML page that needs no server and no network."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent

# In this order each script comes after those it imports.
SOLVER = ("special", "links", "solver", "subset", "answer", "matrix/flow", "matrix/assignment")
STATE = ("numbers", "matrix/margins", "matrix/matrix_state", "state")
CODE = ("code", "matrix/matrix_code")
SCRIPTS = (
    *SOLVER,
    *STATE,
    *CODE,
    *("dom", "frame"),
    *("scores_view", "weights_view", "gradient_view", "curve_view", "cooling_view", "table_view"),
    *("matrix/margins_view", "matrix/cells_view", "matrix/matrix_table", "matrix/matrix_controls"),
    *("controls", "main"),
)
STYLES = ("base", "controls", "pictures", "numbers", "matrix")


def page() -> str:
    """Return the explorer as one HTML page."""
    style = "\n".join(_read("style", f"{name}.css") for name in STYLES)
    text = (HERE / "page.html").read_text(encoding="utf-8")
    return text.replace("/* style */", style).replace("/* script */", script(SCRIPTS))


def script(names: Iterable[str]) -> str:
    """Join ECMAScript modules into one script, in which `modules.name` has what name.js exports.

    Names are paths below script/, without their ending.
    """
    return "\n".join(["const modules = {};", *map(_module, names)])


def _module(name: str) -> str:
    """Return a module as a function that runs at once: its names stay its own."""
    text = _read("script", f"{name}.js")
    exported = re.findall(r"^export (?:function|const) (\w+)", text, flags=re.MULTILINE)
    text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
    text = re.sub(
        r"^import (\{[^}]*\}) from \"\.{1,2}/(?:matrix/)?(\w+)\.js\";",
        r"const \1 = modules.\2;",
        text,
        flags=re.MULTILINE,
    )
    own = name.rpartition("/")[2]
    return f"modules.{own} = (() => {{\n{text}return {{ {', '.join(exported)} }};\n}})();"


def _read(folder: str, name: str) -> str:
    return (HERE / folder / name).read_text(encoding="utf-8")
