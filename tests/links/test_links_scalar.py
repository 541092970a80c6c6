"""Links of a user's own that consist of scalar formulas: their arrays, and errors of formulas."""

import copy
import pickle
import re

import mpmath
import numpy as np
import pytest
import torch

import kofn
import own_links
from kofn import links, losses
from kofn.links import scalar
from kofn.links.vocabulary import exp, over, size, where
from kofn.links.vocabulary import log as ln

STUDENT, GUMBEL, AGAIN, SQUARE = (
    link() for link in (own_links.Student, own_links.Gumbel, own_links.Again, own_links.Square)
)
Z = np.linspace(-8, 8, 41) + 0.03


def student(z):
    return (1 + z / mpmath.sqrt(2 + z * z)) / 2


def gumbel(z):
    return mpmath.exp(-mpmath.exp(-z - mpmath.euler))


def square(z):
    return min(max((z + mpmath.mpf(4) / 3) / 2, 0), 1) ** 2


def exact(function):
    with mpmath.workdps(50):
        return np.array([float(function(mpmath.mpf(float(z)))) for z in Z])


@pytest.mark.parametrize(
    ("link", "cdf"),
    [(STUDENT, student), (GUMBEL, gumbel), (SQUARE, square)],
    ids=["Student", "Gumbel", "Square"],
)
def test_functions_of_arrays_are_those_of_the_distribution(link, cdf):
    def near(found, right):
        np.testing.assert_allclose(found, exact(right), rtol=1e-12, atol=2e-14)

    with np.errstate(all="ignore"):
        near(link.cdf(Z), cdf)
        near(link.sf(Z), lambda z: 1 - cdf(z))
        near(link.pdf(Z), lambda z: mpmath.diff(cdf, z))
        if link is not SQUARE:
            near(  # where a float has the tail: `logarithm` would say more
                np.where(link.cdf(Z) > 1e-300, link.log_cdf(Z), 0),
                lambda z: mpmath.log(cdf(z)) if cdf(z) > 1e-300 else 0,
            )
        inside = (link.cdf(Z) > 0.01) & (link.sf(Z) > 0.01)
        np.testing.assert_allclose(link.quantile(link.cdf(Z))[inside], Z[inside], atol=1e-9)
        if link is not GUMBEL:
            ends = [-mpmath.inf, -100, -10] if link is STUDENT else [mpmath.mpf(-4) / 3]
            ends += [] if link is STUDENT else [mpmath.mpf(2) / 3]
            near(
                link.integral(Z),
                lambda z: mpmath.quad(cdf, sorted({*(min(each, z) for each in ends), z})),
            )


def test_the_formulas_of_built_in_links_make_their_arrays(monkeypatch):
    """By array code; kernels/test_kernels_own.py has the kernels that are compiled of them."""
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    x = np.random.default_rng(0).normal(size=(3, 9))
    for link, built_in in ((AGAIN, "logistic"), (SQUARE, "entmax")):
        for function in (
            lambda link: kofn.soft_topk(x, 2.5, link=link),
            lambda link: kofn.soft_topk_sum(x, 2.5, link=link),
            lambda link: kofn.log_soft_topk(x, 2.5, link=link),
            lambda link: losses.topk_loss(x, (x > 0).astype(float), link=link),
            lambda link: kofn.soft_topk_threshold(x, 2.5, link=link),
        ):
            np.testing.assert_allclose(function(link), function(built_in), atol=1e-12)


@pytest.mark.parametrize(
    "link", [STUDENT, *(pytest.param(link, marks=pytest.mark.full) for link in (GUMBEL, SQUARE))]
)
def test_array_code_differentiates_twice(link, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    x = torch.tensor(np.random.default_rng(1).normal(size=5), requires_grad=True)

    def weights(x):
        return torch.func.vmap(lambda x: kofn.soft_topk(x, 2.5, link=link))(x[None])[0]

    assert torch.autograd.gradcheck(weights, x)
    assert torch.autograd.gradgradcheck(weights, x, fast_mode=True)


def test_a_link_without_an_integral_has_no_losses():
    x = np.zeros(3)
    with pytest.raises(ValueError, match="made without `integral`"):
        kofn.soft_topk_sum(x, 1, link=GUMBEL)


def test_a_class_makes_one_link_which_is_pickled_by_name():
    for link in (STUDENT, SQUARE):
        again = type(link.inner)()
        assert again is link
        assert pickle.loads(pickle.dumps(link)) is link
        assert copy.copy(link) is copy.deepcopy(link) is link
    assert re.search(r"Student, [0-9a-f]{12}$", STUDENT.id)


def test_the_id_is_the_same_for_the_same_formulas_alone():
    """A saved program finds the link again in a process that has it, and no other."""

    def made(factor):
        class Own(links.ScalarLink):
            @staticmethod
            def tail(z):
                t = over(0.5, 1 + factor * size(z))
                slope = 2 * factor * t * t
                return t, z > 0, slope, where(z > 0, -4, 4) * factor * t * slope

        return Own()

    one, same, other = made(1.0), made(1.0), made(2.0)
    assert (one.id, one.number) == (same.id, same.number)
    assert one.id != other.id
    assert one.number != other.number
    assert scalar.OWN[one.number].id == one.id


GOOD = {
    "tail": staticmethod(
        lambda z: (
            0.5 * exp(-size(z)),
            z > 0,
            0.5 * exp(-size(z)),
            where(z > 0, -0.5, 0.5) * exp(-size(z)),
        )
    )
}


def formula(text):
    return staticmethod(eval(text, vars(kofn.links.vocabulary) | {"ln": ln}))


WRONG = [
    ({"tail": None}, TypeError, "has no static method `tail`"),
    ({"dencity": "lambda z: z"}, TypeError, "dencity is no formula; these are: .*density"),
    ({"density": "lambda q: q"}, TypeError, "the formula density .* a function of z"),
    ({"end": 2.0}, TypeError, "one of `end` and `order`"),
    ({"tail": "lambda z: exp(-size(z))"}, TypeError, "the formula tail .* fails|4 numbers|numbers"),
    (
        {"tail": "lambda z: (exp(-size(z)), z > 0, exp(-size(z)), z)"},
        ValueError,
        "the formula tail .* is wrong",
    ),
    ({"density": "lambda z: 0.51 * exp(-size(z))"}, ValueError, "density .* for F′ at .*give"),
    ({"logarithm": "lambda z: z"}, ValueError, "the formula logarithm .* for log F"),
    ({"quantile": "lambda q: log(q)"}, ValueError, "the formula quantile .* for F⁻¹"),
    ({"log_below": "lambda z: (z, like(z, 1))"}, ValueError, "the formula log_below"),
    ({"hazard": "lambda z: (z, z)"}, ValueError, "the formula hazard"),
    (
        {"integral": "lambda z: (0.6 * exp(-size(z)), z > 0, z)"},
        ValueError,
        "the formula integral .* for G′",
    ),
]


@pytest.mark.parametrize(("formulas", "error", "match"), WRONG, ids=lambda value: str(value)[:30])
def test_a_wrong_formula_is_an_error_that_names_it(formulas, error, match):
    body = GOOD | {n: formula(v) if isinstance(v, str) else v for n, v in formulas.items()}
    with pytest.raises(error, match=match):
        type("Wrong", (links.ScalarLink,), {n: v for n, v in body.items() if v is not None})


def test_the_formulas_of_the_errors_are_right_otherwise():
    link = type("Right", (links.ScalarLink,), GOOD)
    with pytest.warns(RuntimeWarning, match="its source cannot be read"):
        assert abs(kofn.soft_topk(np.arange(4.0), 2, link=link()).sum() - 2) < 1e-12
