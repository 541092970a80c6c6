"""Names that kofn does not have lead to those that it has."""

import inspect
import pickle
import re
from importlib import import_module

import numpy as np
import pytest
from sklearn.base import clone

import kofn
from kofn import _NAMES_ELSEWHERE, _names_in, nn
from kofn.arrays.keywords_of_classes import KEYWORDS
from kofn.arrays.names import plain
from kofn.feature_selection import SoftTopKSelector
from kofn.links.table import OTHERS, TABLE
from places import ROOT


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("top_k", "kofn.topk"),
        ("TopK", "kofn.topk"),
        ("softtopk", "kofn.soft_topk"),
        ("soft_top_k", "kofn.soft_topk"),
        ("entmax15", "kofn.entmax(x)"),
        ("gumbelsoftmax", "kofn.gumbel_softmax"),
        ("nanquantile", "kofn.quantile(x, q, ignore_nan=True)"),
        ("TopKRouter", "kofn.nn.TopKRouter"),
        ("ksubset", "kofn.KSubset"),
        ("SoftTopK", "kofn.nn.SoftTopK"),
        ("am_softmax", "kofn.losses.am_softmax"),
        ("AMSoftmax", "kofn.losses.am_softmax"),
        ("renyi_entropy", "kofn.metrics.renyi_entropy"),
        ("rebar", "kofn.estimators.rebar"),
        ("ThreTopK", "kofn.soft_topk(x, k)"),
        ("gradtopk", "kofn.KSubset(x, k).marginals()"),
    ],
)
def test_a_name_of_elsewhere_says_which_one_is_meant(name, meant):
    with pytest.raises(AttributeError) as error:
        getattr(kofn, name)
    wanted = f"module 'kofn' has no attribute {name!r}; you may mean {meant}"
    assert str(error.value) == wanted


@pytest.mark.parametrize("name", ["zzz", "__wrapped__", "_private"])
def test_another_name_is_only_missing(name):
    with pytest.raises(AttributeError) as error:
        getattr(kofn, name)
    assert str(error.value) == f"module 'kofn' has no attribute {name!r}"


@pytest.mark.parametrize("room", kofn._ROOMS)
def test_names_of_a_room_are_read_from_its_source(room):
    assert _names_in(f"kofn.{room}") == [*import_module(f"kofn.{room}").__all__]


def test_terms_of_the_articles_lead_to_what_computes_them():
    page = (ROOT / "docs" / "from_the_articles.md").read_text(encoding="utf-8")
    rows = page.partition("| Term | kofn |")[2].partition("\n\n")[0].splitlines()[2:]
    terms = [
        term.replace("-", "_")
        for row in rows
        for term in re.split("[,;] ", row.split("|")[1].strip())
        if re.fullmatch("[A-Z][A-Za-z-]+", term)
    ]
    assert {"ThreTopK", "GradTopK", "SMART", "EXACT", "STk", "Perturb_Max"} <= {*terms}
    assert [term for term in terms if "; you may mean kofn." not in kofn._missing(term)] == []


def test_what_is_meant_exists():
    for meant in _NAMES_ELSEWHERE.values():
        found = kofn
        for part in meant.partition("(")[0].split("."):
            found = getattr(found, part)
        assert callable(found)
        keywords = [each.partition("=")[0].strip() for each in meant.split(",") if "=" in each]
        assert {*keywords} <= {*inspect.signature(found).parameters}, meant


ROOMS = ("nn", "losses", "metrics", "links", "schedules", "estimators", "projections", "streaming")


@pytest.mark.parametrize("room", [*ROOMS, "balance", "distributed", "feature_selection"])
def test_each_room_answers_for_names_of_others_with_its_own(room):
    module = import_module(f"kofn.{room}")
    for own in module.__all__:
        other = own.swapcase()
        if hasattr(module, other):
            continue
        with pytest.raises(AttributeError) as error:
            getattr(module, other)
        start, _, meant = str(error.value).rpartition(".")
        assert start == f"module 'kofn.{room}' has no attribute {other!r}; you may mean kofn.{room}"
        assert plain(meant) == plain(own)  # both a class and its function may be meant
    with pytest.raises(AttributeError, match=r"attribute '__wrapped__'$"):
        module.__wrapped__  # noqa: B018


@pytest.mark.parametrize(
    ("name", "own"),
    [("Router", "TopKRouter"), ("MoE", "TopKRouter"), ("TopK", "SoftTopK"), ("SAE", "TopKSAE")],
)
def test_modules_by_shorter_names_lead_to_ours(name, own):
    with pytest.raises(AttributeError, match=f"you may mean kofn.nn.{own}$"):
        getattr(nn, name)


X = np.array([2.0, 1.0, 0.5])


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: kofn.soft_topk(X, 2, link=kofn.links.entmax), "'entmax' or links.entmax(alpha)"),
        (lambda: kofn.soft_topk(X, 2, link=kofn.entmax), "'entmax' or links.entmax(alpha)"),
        (lambda: kofn.soft_topk(X, 2, link="sigmoid"), "'logistic'"),
        (lambda: kofn.soft_topk(X, 2, link="Softmax"), "'exponential'"),
        (lambda: kofn.soft_topk(X, 2, link=kofn.sparsemax), "'linear'"),
    ],
)
def test_a_link_by_another_word_says_which_one_is_meant(call, meant):
    with pytest.raises((TypeError, ValueError)) as error:
        call()
    assert str(error.value).endswith(f"; you may mean {meant}")


def test_what_others_call_a_link_is_one_of_the_table():
    assert {*OTHERS.values()} <= {*TABLE}
    assert not {*OTHERS} & {*TABLE}


@pytest.mark.parametrize(
    ("call", "end"),
    [
        (lambda: kofn.soft_topk(X, 2, temperature=0), "got 0; the limit of 0 is the hard choice"),
        (lambda: kofn.soft_topk(X, 2, temperature=-1), "got -1"),
        (lambda: kofn.quantile(X, 95), "got 95; 95 % is 0.95"),
        (lambda: kofn.sparse_softmax(X, p=12.5), "got 12.5; 12.5 % is 0.125"),
        (lambda: kofn.quantile(X, 101), "got 101"),
        (lambda: kofn.quantile(X, -0.5), "got -0.5"),
    ],
)
def test_a_limit_and_percent_are_answered(call, end):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    assert str(error.value).removesuffix(", as by hard_topk").endswith(end)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.TopKRouter(8, 4, 2, tau=0.5), ("TopKRouter", "tau", "temperature")),
        (lambda: nn.TopKRouter(8, 4, num_experts_per_tok=2), (None, "num_experts_per_tok", "k")),
        (lambda: nn.SoftTopK(8, top_k=2, schedule=10), ("SoftTopK", "top_k", "k")),
        (lambda: nn.SparseAttention(8, 2, T=1.0), ("SparseAttention", "T", "temperature")),
        (lambda: nn.TopKSAE(8, dict_size=16, k=2), ("TopKSAE", "dict_size", "d_sae")),
        (
            lambda: SoftTopKSelector(n_features_to_select=2),
            ("SoftTopKSelector", "n_features_to_select", "k"),
        ),
        (lambda: SoftTopKSelector(2, seed=0), ("SoftTopKSelector", "seed", "random_state")),
    ],
)
def test_classes_answer_for_keywords_of_others(make, words):
    owner, other, own = words
    message = f"{owner or 'TopKRouter'}() got an unexpected keyword argument {other!r}; kofn calls"
    with pytest.raises(TypeError) as error:
        make()
    assert str(error.value) == f"{message} it {own}"


def test_answering_for_keywords_leaves_classes_as_they_are():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'$"):
        nn.SoftTopK(8, 2, schedule=10, zzz=1)  # Python's own
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'k'$"):
        nn.TopKRouter(8, 4)
    assert "kwargs" not in str(inspect.signature(nn.TopKRouter))

    class Mine(nn.SoftTopK):
        def __init__(self, tau):
            super().__init__(8, 2, schedule=tau)

    assert pickle.loads(pickle.dumps(nn.SoftTopK(8, 2, schedule=10))).n == Mine(10).n == 8
    for own in KEYWORDS:  # a class with both words takes the one that is written
        assert own not in KEYWORDS[own].split()
    assert clone(SoftTopKSelector(3)).get_params()["k"] == 3
