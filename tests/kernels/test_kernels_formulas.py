"""The formulas of each link's file are those of its array code; every target has their words."""

import math

import numpy as np
import pytest

from kofn import links
from kofn.kernels.contract import KINDS, NORMAL, link_of
from kofn.links.targets import Chosen, Target, names_of, restated
from kofn.links.two_tails import apart

ALPHAS = {5: 1.5, 6: 1.3}
every_kind = pytest.mark.parametrize(
    "number", range(len(KINDS)), ids=[f"{each.link} {each.kind.number}" for each in KINDS]
)


def called(number, name, z, **more):
    """What a formula gives at z, or q, as array code."""
    formula = KINDS[number].kind.formulas[name]
    alpha = ALPHAS.get(number, 0.0)
    given = dict(z=z, q=z, rest=1 - z, alpha=alpha, rise=alpha - 1) | more
    code = formula.__code__
    return formula(*(given[each] for each in code.co_varnames[: code.co_argcount]))


def of(number):
    link = link_of(number, ALPHAS.get(number, 0.0))
    low, high = link.tested
    z = np.linspace(low, high, 241) + 0.0123
    return link, z - link.edge


@every_kind
def test_formulas_are_those_of_array_code(number):
    link, z = of(number)
    traits, kind = KINDS[number], KINDS[number].kind
    shifted = z - 1 if traits.capped else z
    octaves = {"a": np.exp(shifted), "b": np.ones_like(z), "per_b": np.ones_like(z)}
    if traits.two_tails:
        octaves = dict(zip(("a", "b", "per_b"), apart(z), strict=True))
    upper, smaller, slope = link.tails(z)
    cdf = link.cdf(z)
    for name in ("tail", "tail_of_size"):
        if name in kind.formulas:
            t, above, first, second = called(
                number, name, z, e=np.exp(-abs(z)), upper=z > 0, **octaves
            )
            np.testing.assert_array_equal(above, upper)
            np.testing.assert_allclose(t, smaller, rtol=1e-13, atol=1e-16)
            np.testing.assert_allclose(first, slope, rtol=1e-12, atol=1e-16)
            h = 1e-6
            by_steps = (link.pdf(z + h) - link.pdf(z - h)) / (2 * h)
            smooth = np.abs(by_steps) < 10  # the slope of linear jumps
            np.testing.assert_allclose((second + 0 * z)[smooth], by_steps[smooth], atol=1e-7)
    np.testing.assert_allclose(called(number, "density", z), link.pdf(z), rtol=1e-12, atol=1e-16)
    part, up, bent = called(number, "integral", z)
    whole = part + np.where(up, z + link.edge, 0)
    np.testing.assert_allclose(whole, link.integral(z), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(bent, -link.omega(cdf), rtol=1e-9, atol=1e-13)


@every_kind
def test_formulas_of_chances_and_logarithms_are_those_of_array_code(number):
    link, z = of(number)
    formulas, q = KINDS[number].kind.formulas, np.linspace(0.01, 0.99, 99)
    rough = 5e-4 if KINDS[number].link == "normal" else 1e-13
    for name in ("quantile", "gpu_quantile"):
        if name in formulas:
            found = called(number, name, q)
            np.testing.assert_allclose(found, link.quantile(q), rtol=1e-13, atol=rough)
    if "omega" in formulas:
        np.testing.assert_allclose(called(number, "omega", q), link.omega(q), rtol=1e-9, atol=1e-15)
    cdf, pdf = link.cdf(z), link.pdf(z)
    some = cdf > 0
    with np.errstate(divide="ignore"):
        log_cdf = link.log_cdf(z)
        for name in ("logarithm", "log_below"):
            if name in formulas and name + KINDS[number].link != "log_belownormal":
                found = called(number, name, z)
                found, steep = found if name == "log_below" else (found, None)
                below = some if name == "logarithm" else some & (cdf < 0.5)
                np.testing.assert_allclose(found[below], log_cdf[below], rtol=1e-11, atol=1e-14)
                if steep is not None:
                    quotient = (pdf / cdf)[below]
                    np.testing.assert_allclose((steep + 0 * z)[below], quotient, rtol=1e-11)
    for name in ("hazard", "noise"):
        if name in formulas:
            found = called(number, name, z)
            steep = found[0] if name == "hazard" else found[2]
            np.testing.assert_allclose((steep + 0 * z)[some], (pdf / np.where(some, cdf, 1))[some])
    if "above" in formulas:
        high = (cdf > 0.5) & (cdf < 1)
        found = called(number, "above", z, part=link.integral(z), edge=link.edge)
        np.testing.assert_allclose(found[high], link.upper_integral(z)[high], atol=1e-14)


def test_the_normal_log_below_is_for_one_number():
    """Where a formula decides by `if`, it is called for one number of a row, in float64."""
    for z in (-5.0, -29.0, -31.0, -100.0):
        found, steep = (float(each) for each in called(NORMAL, "log_below", np.float64(z)))
        assert found == pytest.approx(float(links.normal.log_cdf(np.array(z))), rel=1e-12)
        assert steep == pytest.approx(float(links.normal.cdf_slope(np.array(z))), rel=1e-10)


def used(formula, target):
    """The names of a formula, and of what it calls, that a target has no word for."""
    for name in names_of(formula):
        value = target.named(formula, name)
        if value is None:
            yield name


@every_kind
def test_compiled_code_has_the_words(number):
    pytest.importorskip("numba")
    from kofn.kernels.cpu.runtime.words import OF_ENTRIES, OF_ROWS

    of_rows = {"quantile", "log_below", "log_above"}
    for name, formula in KINDS[number].kind.formulas.items():
        if not name.startswith(("gpu_", "square_")):
            target = OF_ROWS if name in of_rows else OF_ENTRIES
            missing = set(used(formula, target)) - {
                "where",
                "like",
                "divided",
            }  # these are written otherwise
            assert not missing, f"{KINDS[number].link}.{name} uses {missing}"


def test_a_formula_of_many_kinds_is_written_as_branches():
    """With plain Python in the place of a compiler."""
    words = {"least": min, "greatest": max, "size": abs, "log": math.log, "log1p": math.log1p}
    words |= {"exp": math.exp, "over": lambda a, b: a / b, "log_chance": math.log}
    target = Target(words, lambda function, names: restated(function, names, typed=True))
    chosen = Chosen(target, "quantile", "q, alpha", {"real": lambda like, value: value})
    for number in (0, 1, 4, 6):
        formula = KINDS[number].kind.formulas["quantile"]
        chosen.add(number, formula, {"rest": "1 - q"})
    quantile = chosen.made("math_nan")
    for number in (0, 1, 4, 6):
        wanted = called(number, "quantile", np.float64(0.3))
        assert quantile(number, 0.3, 1.3) == pytest.approx(float(wanted))


def _doubled(z):
    low = 2 * z
    return low + 0 * low


def test_a_variable_may_have_the_name_of_what_other_links_take():
    names = {"real": lambda like, value: value, "low": lambda kind, z: -z}
    chosen = Chosen(Target({}, restated), "log_above", "z", names)
    chosen.add(0, _doubled, {})
    function = chosen.made("low(kind, z)")
    assert (function(0, 3.0), function(1, 3.0)) == (6.0, -3.0)
