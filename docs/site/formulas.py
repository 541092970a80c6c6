"""Formulas of pages, from TeX to MathML, which browsers draw without a script or a font."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def drawn(content: str) -> str:
    """Return a page's HTML with its formulas as MathML."""
    return _FORMULA.sub(_one, content)


def _one(formula: re.Match) -> str:
    tag, tex = formula[1], html.unescape(formula[2]).strip()
    drawn = convert(tex, "block" if tag == "div" else "inline")
    return f'<{tag} class="formula">{drawn}</{tag}>'
