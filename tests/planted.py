"""A link that nobody will add, planted in a copy of the library as CONTRIBUTING.md says.

F(z) = σ(z + 1)², the square of the logistic function, is no better than its neighbours at anything.
That is why it is here: a link that comes into the table later would meet itself in that copy. It
has what few links of the table have: it is not symmetric, and its two tails fall at two rates.
`SLOW` and `FAST` are the steps of CONTRIBUTING.md in the sources, `ORACLES` the one in the tests.
"""

import shutil

LINK = '''"""The square of the logistic function, F(z) = σ(y)² with y = z + 1."""

from kofn.arrays.kinds import namespace, special
from kofn.links.link import BuiltIn, zero_at_ends
from kofn.links.safe_math import softplus


class _Squared(BuiltIn):
    def cdf(self, z):
        return special(z).expit(z + 1) ** 2

    def sf(self, z):
        return special(z).expit(-z - 1) * (1 + special(z).expit(z + 1))

    def pdf(self, z):
        return 2 * self.cdf(z) * special(z).expit(-z - 1)

    def log_pdf(self, z):
        return namespace(z).log(2 + 0 * z) + self.log_cdf(z) - softplus(z + 1)

    def log_cdf(self, z):
        return -2 * softplus(-z - 1)

    def log_sf(self, z):
        return namespace(z).log1p(special(z).expit(z + 1)) - softplus(z + 1)

    def cdf_slope(self, z):
        return 2 * special(z).expit(-z - 1)

    def sf_slope(self, z):
        s = special(z).expit(z + 1)
        return 2 * s * s / (1 + s)

    def integral(self, z):
        return softplus(z + 1) - special(z).expit(z + 1)

    def upper_integral(self, z):
        return softplus(-z - 1) + special(z).expit(-z - 1)

    def quantile(self, q):
        xp = namespace(q)
        root = xp.sqrt(q)
        return xp.log(root) - xp.log1p(-root) - 1

    def upper_quantile(self, q):
        xp = namespace(q)
        root = xp.sqrt(1 - q)
        return xp.log(root) + xp.log1p(root) - xp.log(q) - 1

    def omega(self, q):
        xp = namespace(q)
        inside = (q > 0) & (q < 1)
        root = xp.sqrt(xp.where(inside, q, 0.5))
        bent = root * root * xp.log(root) + (1 - root * root) * xp.log1p(-root)
        return xp.where(inside, bent + root - root * root, zero_at_ends(q))
'''

TAIL = """    if kind == SQUARED:
        b = by * real(a, math.exp(-1.0))
        r = quotient(one, a + b)
        s, t = a * r, b * r
        first, upper = real(a, 2.0) * s * s * t, s * s > half
        return (t * (one + s) if upper else s * s), upper, first, first * (t + t - s)
"""
DENSITY = """    if kind == SQUARED:
        y = z + one
        e = exp2(-abs(y) * octaves)
        t = quotient(e, one + e)
        s = t if y < zero else one - t
        return (s + s) * s * (one - t if y < zero else t)
"""
INTEGRAL = """    if kind == SQUARED:
        y = min(max(z, -far(z)), far(z)) + one
        e = exponential(-abs(y))
        t = e / (one + e)
        s, rest = (t, one - t) if y < zero else (one - t, t)
        if z > zero:
            tail = log1p(e) + rest
            return tail, True, tail + z * rest * (one + s)
        low = log1p(e) - s + max(y, zero)
        return low, False, low - z * s * s
"""
QUANTILE = """    if kind == SQUARED:
        root = math.sqrt(q)
        return math.log(root) - math.log1p(-root) - 1
"""
LOGS = """    if kind == SQUARED:
        e = math.exp(-abs(z + 1))
        s, t = (1 / (1 + e), e / (1 + e)) if z > -1 else (e / (1 + e), 1 / (1 + e))
        if upper:
            return math.log1p(s) - z - 1 - math.log1p(e), 2 * s * s / (1 + s)
        return 2 * (min(z + 1, 0) - math.log1p(e)), 2 * t
"""
TABLE, FACE = "src/kofn/links/table.py", "src/kofn/links/__init__.py"
TYPING = "src/kofn/arrays/typing.py"
CONTRACT, ROWS = "src/kofn/kernels/contract.py", "src/kofn/kernels/cpu/rows"
LAYOUT, FORMULAS = f"{ROWS}/layout.py", f"{ROWS}/formulas.py"
NEW = "src/kofn/links/squared.py"
KIND = '    Kind("squared", two_tails=True, octaves=True, order=3),\n'


def before(anchor, text):
    return anchor, text + anchor


def after(anchor, text):
    return anchor, anchor + text


# Step by step, what CONTRIBUTING.md says: (a piece of a file, what stands there then).
SLOW = {
    TABLE: [
        before("from kofn.links.symmetric import", "from kofn.links.squared import _Squared\n"),
        before("\nTABLE = {", 'squared = _Squared("squared", infinite_tails=True, smooth=True)\n'),
        after("for link in (logistic, ", "squared, "),
        after('"logistic", "normal"', ', "squared"'),
    ],
    FACE: [after("logistic, normal", ", squared"), after('"logistic", "normal"', ', "squared"')],
    TYPING: [after('LinkName = Literal["logistic", ', '"squared", ')],
}
FAST = {
    CONTRACT: [before(')\n"""The links that kernels serve', KIND), after("POWER", ", SQUARED")],
    LAYOUT: [after("    SQUARE,\n", "    SQUARED,\n"), after("SERVED = (", "SQUARED, ")],
    FORMULAS: [
        after("    SQUARE,\n", "    SQUARED,\n"),
        before("    if kind == LINEAR:\n        t = max(", TAIL),
        before("    if kind == LINEAR:\n        return one if", DENSITY),
        before("    size = min(abs(z), far(z))", INTEGRAL),
        before("    if kind == LOGISTIC:\n        return math.log(q) -", QUANTILE),
        before("    z = -z if upper else z", LOGS),
    ],
}
ORACLES = {
    "tests/oracles.py": [
        before(
            "def value(x",
            """CDF["squared"] = lambda z: 1 / (1 + np.exp(-z - 1)) ** 2
PDF["squared"] = lambda z: 2 * CDF["squared"](z) / (1 + np.exp(z + 1))
OMEGA["squared"] = lambda q, z: q * z - np.log1p(np.exp(z + 1)) + np.sqrt(q)
LOGS["squared"] = Logs(
    lambda z: 2 * _log_logistic(z + 1),
    lambda z: mpmath.log1p(mpmath.exp(_log_logistic(z + 1))) + _log_logistic(-z - 1),
    lambda z: mpmath.log(2) + 2 * _log_logistic(z + 1) + _log_logistic(-z - 1),
)


""",
        )
    ],
    "tests/oracles_rows.py": [
        before(
            "def _log_total",
            """TAILS["squared"] = Tails(
    lambda z: special.expit(z + 1) ** 2,
    lambda z: special.expit(-z - 1) * (1 + special.expit(z + 1)),
    lambda z: 2 * special.log_expit(z + 1),
    lambda z: special.log_expit(-z - 1) + np.log1p(special.expit(z + 1)),
)


""",
        )
    ],
}


def edited(text, changes):
    for old, new in changes:
        assert old in text, f"{old!r} is no longer there"
        text = text.replace(old, new, 1)
    return text


def plant(house, root, *steps):
    """Copy the sources and the tests to a folder, and take steps there."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("src/kofn", "tests"):
        shutil.copytree(house / folder, root / folder, ignore=ignored)
    shutil.copy(house / "pyproject.toml", root)
    (root / NEW).write_text(LINK, encoding="utf-8")
    for changes in steps:
        for name, change in changes.items():
            path = root / name
            path.write_text(edited(path.read_text("utf-8"), change), encoding="utf-8")
