"""PyTorch's namespace has what kofn calls in it, and answers as array-api-compat does."""

import ast
import inspect
import math
from itertools import product

import pytest
import torch

from kofn.arrays.torch import at_hand, namespace
from places import ROOT

compat = pytest.importorskip("array_api_compat.torch")
DTYPES = [getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64", "int64")]
PLAIN = torch.tensor([[3.0, -1.0, 0.0, 2.0], [1.0, 1.0, -5.0, 4.0]])


def used():
    """What files of kofn take from a namespace: names, and calls with names of options."""
    names, calls = set(), set()
    for path in (ROOT / "src" / "kofn").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and is_namespace(node.value):
                names.add(node.attr)
            match node:
                case ast.Call(ast.Attribute(of, name), _, options) if is_namespace(of):
                    several = any(isinstance(each.value, ast.Tuple) for each in options)
                    calls.add((name, frozenset(each.arg for each in options), several))
    return names, calls


def is_namespace(node):
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") in ("namespace", "namespace_of")
    return "xp" in (getattr(node, "id", ""), getattr(node, "attr", ""))


def test_what_kofn_calls_is_there_and_is_pytorchs_unless_the_array_api_differs():
    names, calls = used()
    assert {"sum", "where", "take_along_axis"} < names
    assert not [name for name in names if not hasattr(namespace, name)]
    usual = {name for name in names if getattr(namespace, name) is getattr(torch, name, None)}
    # These differ in what kofn never gives them: other keywords, sizes that are integers.
    same = {"arange", "broadcast_to", "finfo", "full", "linalg", "reshape", "round"}
    differing = {name for name in usual if getattr(compat, name) is not getattr(torch, name)}
    assert differing == same & names
    for name, options, several in calls:
        own = getattr(namespace, name)
        if inspect.isfunction(own) and own.__module__ == namespace.__name__:
            takes = inspect.signature(own).parameters
            assert options <= {*takes}, (name, options)
            assert not several or takes["axis"].annotation == "Axis", name


CALLS = {
    "sum": [dict(), dict(axis=-1), dict(axis=0, keepdims=True), dict(axis=(-2, -1))],
    "mean": [dict(), dict(axis=0)],
    "max": [dict(), dict(axis=-1), dict(axis=(0, 1)), dict(axis=0, keepdims=True)],
    "min": [dict(), dict(axis=-1), dict(axis=0, keepdims=True)],
    "any": [dict(), dict(axis=-1), dict(axis=0, keepdims=True), dict(axis=(-2, -1))],
    "all": [dict(), dict(axis=-1), dict(axis=0, keepdims=True), dict(axis=(0, 1))],
    "cumulative_sum": [dict(axis=0), dict(axis=-1)],
    "sort": [dict(), dict(axis=0)],
    "argsort": [dict(), dict(axis=0, descending=True, stable=True)],
    "flip": [dict(axis=-1), dict(axis=0)],
    "expand_dims": [dict(axis=-1), dict(axis=0)],
    "sign": [dict()],
    "asarray": [dict(), dict(dtype=torch.float64)],
}


def same(found, wanted):
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", CALLS)
def test_functions_of_one_tensor(name):
    for how, dtype in product(CALLS[name], DTYPES):
        if name == "mean" and not dtype.is_floating_point:
            continue
        x = PLAIN.to(dtype)
        same(getattr(namespace, name)(x, **how), getattr(compat, name)(x, **how))
    nan = torch.tensor([math.nan, -math.inf, -0.0])
    if name != "expand_dims":
        how = {} if {} in CALLS[name] else dict(axis=0)
        same(getattr(namespace, name)(nan, **how), getattr(compat, name)(nan, **how))


@pytest.mark.parametrize("name", ["maximum", "minimum", "logaddexp", "where"])
def test_two_tensors_have_the_dtype_that_the_array_api_says(name):
    given = [PLAIN.to(dtype) for dtype in DTYPES]
    given += [each[0, 0] for each in given] + [1.5, -2]
    flags = (PLAIN > 0,) if name == "where" else ()
    for x, y in product(given, given):
        if not isinstance(x, torch.Tensor) and not isinstance(y, torch.Tensor):
            continue
        try:
            wanted = getattr(compat, name)(*flags, x, y)
        except (NotImplementedError, RuntimeError):  # logaddexp of integers, of a half and a float
            continue
        same(getattr(namespace, name)(*flags, x, y), wanted)


def test_others():
    at = torch.tensor([[0, -1], [3, 2]])
    for dtype in DTYPES:
        x = PLAIN.to(dtype)
        same(namespace.take_along_axis(x, at), compat.take_along_axis(x, at))
        same(namespace.concat([x, x[:1]]), compat.concat([x, x[:1]]))
        same(namespace.concat((x, x), axis=-1), compat.concat((x, x), axis=-1))
        for ends in ((0, 2), (1, None), (x[0], None), (x[0], 2), (-1, x[1])):
            same(namespace.clip(x, *ends), compat.clip(x, *ends))
    for ends in ((math.nan, 1.0), (0.0, math.nan)):
        assert namespace.clip(PLAIN, *ends).isnan().all()
    same(namespace.asarray([1, 2]), compat.asarray([1, 2]))


def test_tensors_at_hand_have_the_same_answers_by_functions_that_are_pytorchs():
    own = {
        name for name in vars(at_hand) if getattr(namespace, name, None) is not vars(at_hand)[name]
    }
    own = {name for name in own if name[0] != "_" and inspect.isbuiltin(vars(at_hand)[name])}
    assert own >= {"sum", "any", "all", "max", "min", "where", "clip", "maximum", "minimum"}
    x, y = PLAIN, PLAIN.flip(-1)
    for name in own & {*CALLS}:
        for how in CALLS[name]:
            same(getattr(at_hand, name)(x, **how), getattr(namespace, name)(x, **how))
            same(getattr(at_hand, name)(x > 0, **how), getattr(namespace, name)(x > 0, **how))
    for name in ("maximum", "minimum"):
        same(getattr(at_hand, name)(x, y), getattr(namespace, name)(x, y))
    for pair in ((x, y), (1.5, y), (x, math.nan), (math.inf, 1.0)):
        same(at_hand.where(x > 0, *pair), namespace.where(x > 0, *pair))
    same(at_hand.clip(x, -math.inf, 1.0), namespace.clip(x, -math.inf, 1.0))
