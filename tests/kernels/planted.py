"""A link that nobody will add, planted in a copy of the library as CONTRIBUTING.md says.

F(z) = σ(z + 1)², the square of the logistic function, is no better than its neighbours at anything.
That is why it is here: a link that comes into the table later would meet itself in that copy. It
has what few links of the table have: it is not symmetric, and its two tails fall at two rates.
`LINK` is its file, `ORACLES` its line in the tests; the rest is written by `make signatures`.
"""

import shutil

import names_written
from kofn.kernels.contract import KINDS

LINK = '''"""The square of the logistic function, F(z) = σ(y)² with y = z + 1."""

import math

from kofn.links.kind import Kind, formulas
from kofn.links.two_tails import TwoTails
from kofn.links.vocabulary import *

PER_E = math.exp(-1.0)


def tail(a, b):
    down = b * PER_E
    r = over(1, a + down)
    s, t = a * r, down * r
    slope, upper = 2 * s * s * t, s * s > 0.5
    return where(upper, t * (1 + s), s * s), upper, slope, slope * (t + t - s)


def density(z):
    y = z + 1
    e = exp_in_reach(-size(y))
    t = over(e, 1 + e)
    s, rest = where(y < 0, t, 1 - t), where(y < 0, 1 - t, t)
    return 2 * s * s * rest


def integral(z):
    y = least(greatest(z, -far(z)), far(z)) + 1
    e = exp(-size(y))
    t = e / (1 + e)
    s, rest = where(y < 0, t, 1 - t), where(y < 0, 1 - t, t)
    high, low = log1p(e) + rest, log1p(e) - s + greatest(y, 0)
    return where(z > 0, high, low), z > 0, where(z > 0, high + z * rest * (1 + s), low - z * s * s)


def quantile(q):
    root = sqrt(q)
    return log(root) - log1p(-root) - 1


def log_below(z):
    y = z + 1
    e = exp(-size(y))
    return 2 * (least(y, 0) - log1p(e)), 2 * where(y > 0, e, 1) / (1 + e)


def log_above(z):
    y = z + 1
    e = exp(-size(y))
    s = where(y > 0, 1, e) / (1 + e)
    return log1p(s) - greatest(y, 0) - log1p(e), 2 * s * s / (1 + s)


def omega(q):
    root = sqrt(q)
    rest = 1 - root
    return q * log_chance(root) + rest * (1 + root) * log_chance(rest) + root * rest


def logarithm(z):
    y = z + 1
    return 2 * (least(y, 0) - log1p(exp(-size(y))))


def hazard(z):
    y = z + 1
    e = exp(-size(y))
    t = over(e, 1 + e)
    s, rest = where(y > 0, 1 - t, t), where(y > 0, t, 1 - t)
    return 2 * rest, 2 * s * s * rest


class Squared(TwoTails):
    smooth = True
    kinds = (Kind(NUMBER, formulas(__name__), octaves=True, order=3),)


squared = Squared("squared")
'''.replace("NUMBER", str(len(KINDS)))
NEW = "src/kofn/links/built_in/squared.py"


def before(anchor, text):
    return anchor, text + anchor


# What CONTRIBUTING.md says beside the link's file: (a piece of a file, what stands there then).
ORACLES = {
    "tests/oracles/links.py": [
        before('    "laplace": lambda', '    "squared": lambda z: 1 / (1 + exp(-z - 1)) ** 2,\n')
    ],
}


def edited(text, changes):
    for old, new in changes:
        assert old in text, f"{old!r} is no longer there"
        text = text.replace(old, new, 1)
    return text


def plant(house, root):
    """Copy the sources and the tests to a folder, and add the link there."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("src/kofn", "tests"):
        shutil.copytree(house / folder, root / folder, ignore=ignored)
    shutil.copy(house / "pyproject.toml", root)
    (root / NEW).write_text(LINK, encoding="utf-8")
    for name, change in ORACLES.items():
        path = root / name
        path.write_text(edited(path.read_text("utf-8"), change), encoding="utf-8")
    for path, text in names_written.written(root / "src" / "kofn").items():
        path.write_text(text, encoding="utf-8")
