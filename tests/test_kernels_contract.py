"""The table of links that kernels serve, and a link added to a copy as CONTRIBUTING.md says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest

import kofn
from kofn.kernels import contract
from kofn.links import table

HOUSE = Path(__file__).parents[1]

GUMBEL = '''"""Gumbel's link, F(z) = exp(−u) with u = e^−(z+γ)."""

import math

from kofn.arrays.kinds import namespace
from kofn.links.link import BuiltIn
from kofn.links.safe_math import expm1_over

EULER = 0.5772156649015329


def _place(z, least=-25.0):
    """z + γ, no less than where F and its derivatives have underflowed."""
    y = z + EULER
    return namespace(z).where(y > least, y, least)


def _tail_of_integral(u):
    """e^−u over ∫_u^∞ e^−t/t, by its continued fraction."""
    rest = u
    for i in range(24, 0, -1):
        rest = u + i / (1 + i / rest)
    return rest


class _Gumbel(BuiltIn):
    def _u(self, z):
        return namespace(z).exp(-_place(z))

    def cdf(self, z):
        return namespace(z).exp(-self._u(z))

    def sf(self, z):
        return -namespace(z).expm1(-self._u(z))

    def pdf(self, z):
        return namespace(z).exp(-_place(z) - self._u(z))

    def log_pdf(self, z):
        y = _place(z, -80.0)
        return -y - namespace(z).exp(-y)

    def log_cdf(self, z):
        return -namespace(z).exp(-_place(z, -80.0))

    def log_sf(self, z):
        return namespace(z).log(expm1_over(-self._u(z))) - _place(z)

    def cdf_slope(self, z):
        return namespace(z).exp(-_place(z, -80.0))

    def sf_slope(self, z):
        return namespace(z).exp(-self._u(z)) / expm1_over(-self._u(z))

    def integral(self, z):
        xp = namespace(z)
        up = z > 0
        u = namespace(z).exp(-_place(xp.where(up, 0.0, z)))
        far = u > 2
        low = xp.where(far, 0.0, z)
        rest = _tail_of_integral(xp.where(far, u, 3.0))
        low = xp.where(far, xp.exp(-u) / rest, self._small(low) - low - EULER)
        return xp.where(up, z + self._small(xp.where(up, z, 0.0)), low)

    def upper_integral(self, z):
        xp = namespace(z)
        near = z > -1
        return xp.where(
            near, self._small(xp.where(near, z, 0.0)), self.integral(xp.where(near, -1.0, z)) - z
        )

    def _small(self, z):
        """Σ −(−u)^i/(i·i!), of a small u."""
        u = self._u(z)
        term, total = 1.0, 0.0 * u
        for i in range(1, 25):
            term = -u / i * term
            total = total - term / i
        return total

    def quantile(self, q):
        xp = namespace(q)
        return -xp.log(-xp.log(q)) - EULER

    def upper_quantile(self, q):
        xp = namespace(q)
        return -xp.log(-xp.log1p(-q)) - EULER
'''


TAIL = """    if kind == GUMBEL:
        u = quotient(by * real(a, math.exp(-EULER)), max(a, real(a, 1e-30)))
        p = exp2(-min(u, reach(a)) * real(a, LOG2_E)) if u < reach(a) else zero
        upper, rest, i = p > half, one, real(a, 15.0)
        for _ in range(14):
            rest = one - rest * u / i
            i -= one
        return (rest * u if upper else p), upper, u * p, u * p * (u - one)
"""
DENSITY = """    if kind == GUMBEL:
        u = exp2(-(min(max(z, -reach(z)), reach(z)) + real(z, EULER)) * octaves)
        return u * exp2(-min(u, reach(z)) * octaves) if u < reach(z) else zero
"""
INTEGRAL = """    if kind == GUMBEL:
        y, octaves = min(max(z, real(z, -80.0)), reach(z)) + real(z, EULER), real(z, LOG2_E)
        u = exp2(-y * octaves)
        p = exp2(-min(u, reach(z)) * octaves) if u < reach(z) else zero
        small, i, term, rest = zero, zero, one, u
        for _ in range(24):
            i += one
            term *= -u / i
            small -= term / i
        for _ in range(24):
            rest = u + i / (one + i / rest)
            i -= one
        if z > zero:
            return small, True, small + z * (one - p)
        low = small - y if u < real(z, 2.0) else p / rest
        return low, False, low - z * p
"""
QUANTILE = """    if kind == GUMBEL:
        return -math.log(-math.log(q)) - EULER
"""
LOGS = """    if kind == GUMBEL:
        y = z + EULER
        u = math.exp(-y)
        if not upper:
            return -u, u
        return (math.log(-math.expm1(-u)), u / math.expm1(u)) if y < 30 else (-y, 1.0)
"""
TABLE, FACE = "src/kofn/links/table.py", "src/kofn/links/__init__.py"
TYPING = "src/kofn/arrays/typing.py"
CONTRACT, ROWS = "src/kofn/kernels/contract.py", "src/kofn/kernels/cpu/rows"
LAYOUT, FORMULAS = f"{ROWS}/layout.py", f"{ROWS}/formulas.py"
KIND = '    Kind("gumbel", two_tails=True, octaves=True),\n'


def before(anchor, text):
    return anchor, text + anchor


def after(anchor, text):
    return anchor, anchor + text


# Step by step, what CONTRIBUTING.md says: (a piece of a file, what stands there then).
SLOW = {
    TABLE: [
        before("from kofn.links.link import", "from kofn.links.extreme import _Gumbel\n"),
        before("\nTABLE = {", 'gumbel = _Gumbel("gumbel", infinite_tails=True)\n'),
        after("for link in (logistic, ", "gumbel, "),
        before('"laplace", "linear"', '"gumbel", '),
    ],
    FACE: [after("exponential, ", "gumbel, "), after('"exponential", ', '"gumbel", ')],
    TYPING: [after('LinkName = Literal["logistic", ', '"gumbel", ')],
}
FAST = {
    CONTRACT: [before(')\n"""The links that kernels serve', KIND), after("POWER", ", GUMBEL")],
    LAYOUT: [after("    EXPONENTIAL,\n", "    GUMBEL,\n"), after("SERVED = (", "GUMBEL, ")],
    FORMULAS: [
        after("    EXPONENTIAL,\n", "    GUMBEL,\n"),
        before("\n\n@inline", "\nEULER = 0.5772156649015329\n"),
        before("    if kind == LINEAR:\n        t = max(", TAIL),
        before("    if kind == LINEAR:\n        return one if", DENSITY),
        before("    size = min(abs(z), far(z))", INTEGRAL),
        before("    if kind == LOGISTIC:\n        return math.log(q) -", QUANTILE),
        before("    z = -z if upper else z", LOGS),
    ],
}
NEW = "src/kofn/links/extreme.py"


def edited(text, changes):
    for old, new in changes:
        assert old in text, f"{old!r} is no longer there"
        text = text.replace(old, new, 1)
    return text


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The library with one more link."""
    root = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__", "commands")
    shutil.copytree(HOUSE / "src" / "kofn", root / "src" / "kofn", ignore=ignored)
    (root / NEW).write_text(GUMBEL, encoding="utf-8")
    for name, changes in (SLOW | FAST).items():
        path = root / name
        path.write_text(edited(path.read_text("utf-8"), changes), encoding="utf-8")
    return root


def ran(copy, code, **options):
    """What a process with that copy prints, as JSON."""
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"} | options
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


def test_the_files_of_a_new_link_are_those_that_contributing_names():
    text = (HOUSE / "CONTRIBUTING.md").read_text("utf-8")
    section = text[text.index("## Add a link") :].split("\n## ")[0]
    steps = {int(step[0]): step for step in re.split(r"\n(?=\d\. )", section)[1:]}
    assert all(f"`{name}`" in steps[2] + steps[3] for name in (NEW, *SLOW))
    assert all(f"`{name}`" in steps[5] for name in FAST)


def test_every_link_of_the_table_is_served_by_its_number():
    every = dict(enumerate(contract.KINDS))
    for number, kind in every.items():
        assert kind.two_tails + kind.bounded + kind.capped == 1
        assert kind.link in table.TABLE
        assert kind.two_tails == (table.TABLE[kind.link].inner._infinite_tails is True)
        for trait in ("two_tails", "bounded", "capped", "octaves"):
            assert (number in getattr(contract, trait.upper())) == getattr(kind, trait)
    numbers = {contract.kind_of(link.inner) for link in table.TABLE.values()}
    numbers -= {None}  # links that array code serves
    assert numbers | {contract.kind_of(kofn.links.entmax(1.3).inner)} == set(every)


ROWS = (
    # scores, k, temperature: ordinary; far apart; hard at a low temperature; not quite
    ([0.3, -1.0, 2.0, 0.7], 2.0, 1.0),
    ([0.3, -1.0, 2.0, 0.7], 0.3, 0.4),
    ([100.0, 0.0, -100.0], 1.0, 1.0),
    ([100.0, 0.0, -100.0], 2.0, 1.0),
    ([3.0, 1.0, 0.5, -2.0], 2.0, 1e-3),
    ([3.0, 1.0, 0.5, -2.0], 1.0, 0.02),
    ([3.0, 1.0, 0.5, -2.0], 3.0, 0.3),
)
HARD = ROWS[2:6]
COTANGENT = [1.0, -2.0, 0.5, 3.0]

CODE = f"""
import json, os, numpy as np, torch, kofn
from kofn import kernels, links
rows, v = json.loads({json.dumps(json.dumps(ROWS))}), {COTANGENT}
def of(row, dtype):
    x, k, t = (torch.tensor(a, dtype=dtype, requires_grad=True) for a in row)
    p = kofn.soft_topk(x, k, link="gumbel", temperature=t)
    cotangent = torch.tensor(v[: x.numel()], dtype=dtype)
    one = torch.autograd.grad(p, (x, k, t), cotangent, retain_graph=True)
    again = torch.autograd.grad(p, (x, k, t), cotangent, create_graph=True)
    two = torch.autograd.grad((again[0] * p.detach()).sum() + again[1], (x, k))
    s = kofn.soft_topk_sum(x, k, link="gumbel", temperature=t)
    return [a.detach().numpy().tolist() for a in (p, *one, *two, s)]
served = kernels.serving_of("rows", np.ones(3, np.float32), "numpy", links.gumbel)
name = None if served is None else served.__name__
found = [of(row, getattr(torch, os.environ["DTYPE"])) for row in rows]
print(json.dumps([name, kofn.__file__, found]))
"""


def exact(x, k, temperature):
    """(weights, cotangents of the scores and of k), by bisection in many digits."""
    with mpmath.workdps(60 + int(1 / temperature)):
        x, k, t = [mpmath.mpf(a) for a in x], mpmath.mpf(k), mpmath.mpf(temperature)

        def places(theta):
            return [(a - theta) / t + mpmath.euler for a in x]

        def weights(theta):  # those left out are below e^−(10⁸)
            return [mpmath.exp(-mpmath.exp(-y)) if y > -20 else 0 for y in places(theta)]

        low, high = min(x) - 60 * t, max(x) + 60 * t
        for _ in range(400):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(weights(middle)) > k else (low, middle)
        slopes = [
            p * mpmath.exp(-y) if p else 0 for p, y in zip(weights(low), places(low), strict=True)
        ]
        pairs = list(zip(slopes, COTANGENT, strict=False))
        mean = sum(w * mpmath.mpf(g) for w, g in pairs) / sum(slopes)
        back = [w * (mpmath.mpf(g) - mean) / t for w, g in pairs]
        return np.array(weights(low), float), np.array(back, float), float(mean)


def meets_the_laws(found, eps):
    for row, (p, in_x, in_k, *_) in zip(ROWS, found, strict=True):
        weights, back, mean = exact(*row)
        size = 1 + np.abs(back).max()
        np.testing.assert_allclose(p, weights, rtol=0, atol=eps)
        np.testing.assert_allclose(sum(p), row[1], rtol=eps)
        np.testing.assert_allclose(in_x, back, rtol=0, atol=20 * eps * size)
        np.testing.assert_allclose(in_k, mean, rtol=100 * eps, err_msg=str(row))


def test_the_reference_serves_a_new_link(copy):
    """Weights, gradients, plateaus; no kernel is compiled."""
    name, file, found = ran(copy, CODE, KOFN_KERNELS="reference", DTYPE="float64")
    assert name is None
    assert Path(file).is_relative_to(copy)
    meets_the_laws(found, 1e-10)


@pytest.mark.full
def test_kernels_serve_a_new_link(copy):
    """One link, one precision: its traits decide on plateaus, and it is served like the others."""
    name, _, found = ran(copy, CODE, DTYPE="float32")
    assert name == "kofn.kernels.cpu.rows.launch"
    meets_the_laws(found, 1e-6)
    _, _, wanted = ran(copy, CODE, KOFN_KERNELS="reference", DTYPE="float32")
    for row, one, other in zip(ROWS, found, wanted, strict=True):
        if row in HARD:  # there F′ is subnormal, or 0
            continue
        for got, exactly in zip(one[3:], other[3:], strict=True):  # in T; second ones; the sum
            scale = 1 + np.abs(exactly).max()
            np.testing.assert_allclose(got, exactly, rtol=0, atol=1e-4 * scale)
