"""Names that kofn does not have lead to those that it has."""

import inspect

import pytest

import kofn
from kofn import _NAMES_ELSEWHERE


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


def test_what_is_meant_exists():
    for meant in _NAMES_ELSEWHERE.values():
        found = kofn
        for part in meant.partition("(")[0].split("."):
            found = getattr(found, part)
        assert callable(found)
        keywords = [each.partition("=")[0].strip() for each in meant.split(",") if "=" in each]
        assert {*keywords} <= {*inspect.signature(found).parameters}, meant
