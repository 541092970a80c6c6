"""No test lists links by hand, so that a new link meets the tests of its kind by itself."""

import ast
import contextlib
from pathlib import Path

import oracles
import support
from kofn.maps.perturbed import NOISES
from oracles import rows as oracles_rows
from places import TESTS

NAMES = {*support.LINKS, *(name.upper() for name in support.LINKS), "SQUARE", "POWER"}
FEW = 3
"""So many links in one place are a list; two may be an example of each of two kinds."""

BY_HAND = {
    # (file, the least of what is listed): why the table does not say it.
    ("test_maps_assignment_peers.py", "exponential"): "the regularisers that cvxpy can state",
    ("test_metrics.py", "laplace"): "the constants that docs/maps.md states",
    ("test_maps_perturbed.py", "laplace"): "SciPy's distributions, by the names of the noises",
    ("test_nn_flex_attention.py", "entmax"): "kinds of attention, two with the name of a link",
    ("test_solver.py", "laplace"): "thresholds that others have published",
}


def name_of(node):
    """The name of a link that an item is, or begins with where it is a pair; else None."""
    match node:
        case ast.Constant(value=str(name)) | ast.Name(id=name) | ast.Attribute(attr=name):
            return name if name in NAMES else None
        case ast.Call(func=ast.Attribute(attr="param"), args=[first, *_]):
            return name_of(first)
        case ast.Call(func=function):
            return name_of(function)
        case ast.Tuple(elts=[first, _]) | ast.Starred(value=first):
            return name_of(first)
    return None


def lists(tree):
    """(what is listed, line) of every literal with at least `FEW` links, or keys."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and "\n" in str(node.value):  # may be a program
            with contextlib.suppress(SyntaxError):
                yield from lists(ast.parse(node.value))
        if isinstance(node, ast.Dict):
            items = node.keys
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            items = node.elts
        elif isinstance(node, ast.Compare):
            items = [node.left, *node.comparators]
        else:
            continue
        found = {name_of(item) for item in items} - {None}
        if len(found) >= FEW:
            yield found, node.lineno


def test_no_test_lists_links_by_hand():
    """A table of oracles is held to the table of links below."""
    wrong, used = [], set()
    for path in sorted(TESTS.rglob("*.py")):
        here = path.name in ("planted.py", Path(__file__).name)
        if here or path.parent.name == "oracles":
            continue
        for found, line in lists(ast.parse(path.read_text("utf-8"))):
            place = path.name, min(found)
            used.add(place)
            if place not in BY_HAND:
                wrong.append(f"{path.name}:{line} lists {sorted(found)}: take them from support.py")
    assert not wrong, "\n".join(wrong)
    assert used == BY_HAND.keys(), "an exception that is none any more"


def test_such_a_list_is_seen():
    seen = """
LINKS = ("logistic", "laplace", "normal")
LINKS = [links.linear, links.entmax(1.3), "logistic"]
LINKS = {LOGISTIC: 1, LINEAR: 2, POWER: 3}
LINKS = [pytest.param("laplace", marks=full), *("normal", 1), ("linear", 2)]
"""
    assert [line for _, line in lists(ast.parse(seen))] == [2, 3, 4, 5]
    assert len(list(lists(ast.parse(f"code = {seen!r}")))) == 4
    assert not [*lists(ast.parse('a = "linear", "entmax"\nb = ("x", "linear"), ("y", "normal")'))]


def test_every_link_has_its_oracles():
    """Those of a row of the table of links; a trait of the table says which has which."""
    for oracle in (oracles.CDF, oracles.PDF, oracles.OMEGA, oracles_rows.TAILS):
        assert tuple(sorted(oracle)) == tuple(sorted(support.LINKS))
    assert sorted(oracles.LOGS) == sorted(support.ENDLESS)
    for name, tails in oracles_rows.TAILS.items():
        assert (tails.log_cdf is not None) == (tails.log_sf is not None)
        assert (tails.log_cdf is not None) == (name in support.TWO_TAILS)
    assert set(NOISES) - {"uniform"} <= set(support.TWO_TAILS)
