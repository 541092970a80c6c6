"""The table of links that kernels serve, and a link added to a copy as CONTRIBUTING.md says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import integrate, special

import kofn
import planted
import support
from kofn.kernels import contract
from kofn.links import table
from places import ROOT

HOUSE = ROOT


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The library with one more link."""
    root = tmp_path_factory.mktemp("copy")
    planted.plant(HOUSE, root)
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


def test_the_file_of_a_new_link_is_the_one_that_contributing_names():
    text = (HOUSE / "CONTRIBUTING.md").read_text("utf-8")
    section = text[text.index("## Add a link") :].split("\n## ")[0]
    steps = {int(step[0]): step for step in re.split(r"\n(?=\d\. )", section)[1:]}
    assert f"`{planted.NEW}`" in steps[2]
    assert "`make signatures`" in steps[3]


def test_every_link_of_the_table_is_served_by_its_number():
    every = dict(enumerate(contract.KINDS))
    for number, traits in every.items():
        assert traits.two_tails + traits.bounded + traits.capped == 1
        for trait in ("two_tails", "bounded", "capped"):
            assert (number in getattr(contract, trait.upper())) == getattr(traits, trait)
    numbers = {contract.kind_of(link.inner) for link in table.TABLE.values()}
    numbers -= {None}  # links that array code serves
    assert numbers | {contract.kind_of(kofn.links.entmax(1.3).inner)} == set(every)
    for name, inner in support.INNER.items():
        number = getattr(contract, name.upper(), None)
        assert number is None or contract.kind_of(inner) == number
    square, power = (contract.kind_of(kofn.links.entmax(alpha).inner) for alpha in (1.5, 1.3))
    assert (square, power) == (contract.SQUARE, contract.POWER)


def test_traits_are_those_of_the_kernels():
    """What the tests take from a link, and what compiled code does, are the same."""
    traits = {"two_tails": support.TWO_TAILS, "capped": support.CAPPED, "bounded": support.BOUNDED}
    for trait, names in traits.items():
        served = {kind.link for kind in contract.KINDS if getattr(kind, trait)}
        assert served <= set(names)
        assert set(names) - served <= set(support.LINKS) - {kind.link for kind in contract.KINDS}
    assert {*support.TWO_TAILS, *support.CAPPED, *support.BOUNDED} == set(support.LINKS)
    assert set(support.SMOOTH) <= set(support.TWO_TAILS)
    assert all(support.ONE_OF_EACH)


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
    p = kofn.soft_topk(x, k, link="squared", temperature=t)
    cotangent = torch.tensor(v[: x.numel()], dtype=dtype)
    one = torch.autograd.grad(p, (x, k, t), cotangent, retain_graph=True)
    again = torch.autograd.grad(p, (x, k, t), cotangent, create_graph=True)
    two = torch.autograd.grad((again[0] * p.detach()).sum() + again[1], (x, k))
    s = kofn.soft_topk_sum(x, k, link="squared", temperature=t)
    return [a.detach().numpy().tolist() for a in (p, *one, *two, s)]
served = kernels.serving_of("rows", np.ones(3, np.float32), "numpy", links.squared)
name = None if served is None else served.__name__
found = [of(row, getattr(torch, os.environ["DTYPE"])) for row in rows]
print(json.dumps([name, kofn.__file__, found]))
"""


def exact(x, k, temperature):
    """(weights, cotangents of the scores and of k, S_k), by bisection in many digits."""
    with mpmath.workdps(60 + int(1 / temperature)):
        x, k, t = [mpmath.mpf(a) for a in x], mpmath.mpf(k), mpmath.mpf(temperature)

        def places(theta):
            return [(a - theta) / t + 1 for a in x]

        def weights(theta):
            return [(1 / (1 + mpmath.exp(-y))) ** 2 for y in places(theta)]

        low, high = min(x) - 60 * t, max(x) + 60 * t
        for _ in range(400):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(weights(middle)) > k else (low, middle)
        pairs = list(zip(weights(low), places(low), strict=True))
        slopes = [2 * p / (1 + mpmath.exp(y)) for p, y in pairs]
        total = k * low + t * sum(mpmath.log1p(mpmath.exp(y)) - mpmath.sqrt(p) for p, y in pairs)
        pairs = list(zip(slopes, COTANGENT, strict=False))
        mean = sum(w * mpmath.mpf(g) for w, g in pairs) / sum(slopes)
        back = [w * (mpmath.mpf(g) - mean) / t for w, g in pairs]
        return np.array(weights(low), float), np.array(back, float), float(mean), float(total)


def meets_the_laws(found, eps):
    for row, (p, in_x, in_k, *_, value) in zip(ROWS, found, strict=True):
        weights, back, mean, total = exact(*row)
        size = 1 + np.abs(back).max()
        np.testing.assert_allclose(p, weights, rtol=0, atol=eps)
        np.testing.assert_allclose(sum(p), row[1], rtol=eps)
        np.testing.assert_allclose(in_x, back, rtol=0, atol=20 * eps * size)
        np.testing.assert_allclose(in_k, mean, rtol=100 * eps, err_msg=str(row))
        np.testing.assert_allclose(value, total, rtol=0, atol=eps * np.abs(row[0]).max())


PLACES = np.concatenate([np.linspace(-9, 9, 37), [-0.01, 0.01]])
FUNCTIONS = ["cdf", "sf", "pdf", "log_pdf", "log_cdf", "log_sf", "cdf_slope", "sf_slope"]
FUNCTIONS += ["integral", "upper_integral"]
OF_CHANCES = ("quantile", "upper_quantile", "omega")
OF_THE_LINK = f"""
import json, numpy as np
from kofn import links
z = np.array({PLACES.tolist()})
found = {{name: getattr(links.squared, name)(z).tolist() for name in {FUNCTIONS}}}
q = np.array(found["cdf"])
found |= {{name: getattr(links.squared, name)(q).tolist() for name in {OF_CHANCES}}}
print(json.dumps(found))
"""


def test_the_new_link_is_one(copy):
    """Every function that it states is that of its F; G is ∫F and 0 at −∞, G − z is 0 at ∞."""
    found = {name: np.array(values) for name, values in ran(copy, OF_THE_LINK).items()}
    cdf, sf = special.expit(PLACES + 1) ** 2, -special.expm1(2 * special.log_expit(PLACES + 1))
    pdf = 2 * cdf * special.expit(-PLACES - 1)

    def area(function, low, high):
        return integrate.quad(function, low, high, epsabs=1e-13, epsrel=1e-13, limit=200)[0]

    below = [area(lambda z: special.expit(z + 1) ** 2, -np.inf, z) for z in PLACES]
    above = [
        area(lambda z: -special.expm1(2 * special.log_expit(z + 1)), z, np.inf) for z in PLACES
    ]
    omega = [area(lambda q: np.log(q**0.5) - np.log1p(-(q**0.5)) - 1, 0, q) for q in cdf]
    wanted = dict(cdf=cdf, sf=sf, pdf=pdf, integral=below, upper_integral=above, omega=omega)
    wanted |= dict(log_pdf=np.log(pdf), log_cdf=np.log(cdf), log_sf=np.log(sf), quantile=PLACES)
    wanted |= dict(cdf_slope=pdf / cdf, sf_slope=pdf / sf)
    assert wanted.keys() | {"upper_quantile"} == found.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-9, atol=1e-11, err_msg=name)
    back = special.expit(found["upper_quantile"] + 1) ** 2
    np.testing.assert_allclose(back, 1 - cdf, atol=1e-14)


def test_the_reference_serves_a_new_link(copy):
    """Weights, gradients, plateaus, the smoothed sum; no kernel is compiled."""
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


MET = {
    # Tests that a new link with two tails has to meet by itself.
    "test_solver_plateau.py": "torch-squared-float64-True",  # plateaus
    "test_maps_accuracy.py": "squared",  # oracles
    "test_kernels_code.py": f"vectors_of_the_precision_they_are_given[{len(contract.KINDS)}]",
    "test_distributions_categorical_noise.py": "squared",
    "test_maps_assignment_gradients.py": "squared",
}


@pytest.mark.full
def test_a_new_link_meets_the_tests_of_its_kind(copy):
    """No test names it: they take links and kinds from the table."""
    code = f"""
import contextlib, io, json, pathlib, pytest
files = [str(next(pathlib.Path("tests").rglob(name))) for name in {list(MET)}]
with contextlib.redirect_stdout(io.StringIO()) as out:
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-m", "full or not full"]
    assert pytest.main([*options, *files]) == 0
print(json.dumps(out.getvalue()))
"""
    found = ran(copy, code).splitlines()
    for file, part in MET.items():
        assert any(file in line and part in line for line in found), (file, part)
