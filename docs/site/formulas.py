"""Formulas of pages, from TeX to MathML, which browsers draw without a script or a font."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_TEX = re.compile(r"\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
_WORD = re.compile(r"<m[io]>([A-Za-z]{2,})</m[io]>(<mo[^>]*>(?:\(|&#x00028;)|)")

# An infinity is a number, and a plus-minus an operator. The italic θ of the font looks like θ̂.
_MEANT = {
    "<mo>&#x0221E;</mo>": "<mi>&#x0221E;</mi>",
    "<mi>&#x000B1;</mi>": "<mo>&#x000B1;</mo>",
    "<mi>&#x003B8;</mi>": '<mi mathvariant="normal">&#x003B8;</mi>',
}


def drawn(content: str) -> str:
    """Return a page's HTML with its formulas as MathML."""
    return _FORMULA.sub(_one, content)


def said(text: str) -> str:
    """Return text, such as that of a search, with its formulas as their signs alone."""
    return _TEX.sub(_signs, text)


def _signs(formula: re.Match) -> str:
    found = f'<span class="arithmatex">{formula[0]}</span>'
    return html.escape(html.unescape(re.sub(r"<[^>]+>", "", drawn(found))), quote=False)


def _one(formula: re.Match) -> str:
    tag, tex = formula[1], html.unescape(formula[2]).strip()
    shape = _WORD.sub(_spaced, convert(tex, display="block" if tag == "div" else "inline"))
    for sign, meant in _MEANT.items():
        shape = shape.replace(sign, meant)
    if unknown := re.search(r"\\\w+", shape):
        raise ValueError(f"no MathML for {unknown[0]} in the formula {tex}")
    return f'<{tag} class="formula">{shape}</{tag}>'


def _spaced(word: re.Match) -> str:
    """Set a function's name as TeX does: a thin space on each side, but none before brackets."""
    after = "0" if word[2] else "0.167em"
    return f'<mo lspace="0.167em" rspace="{after}">{word[1]}</mo>{word[2]}'
