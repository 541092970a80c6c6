"""Formulas of pages, from TeX to MathML, which browsers draw without a script or a font."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_WORD = re.compile(r"<m[io]>([A-Za-z]{2,})</m[io]>(<mo[^>]*>(?:\(|&#x00028;)|)")


def drawn(content: str) -> str:
    """Return a page's HTML with its formulas as MathML."""
    return _FORMULA.sub(_one, content)


def _one(formula: re.Match) -> str:
    tag, tex = formula[1], html.unescape(formula[2]).strip()
    drawn = _WORD.sub(_spaced, convert(tex, display="block" if tag == "div" else "inline"))
    return f'<{tag} class="formula">{drawn}</{tag}>'


def _spaced(word: re.Match) -> str:
    """Set a function's name as TeX does: a thin space on each side, but none before brackets."""
    after = "0" if word[2] else "0.167em"
    return f'<mo lspace="0.167em" rspace="{after}">{word[1]}</mo>{word[2]}'
