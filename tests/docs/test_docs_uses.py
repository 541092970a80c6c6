"""Every public function and class is used by a guide, an example or a study."""

import ast
import re

from places import ROOT, TESTS
from test_docs import PAGES
from test_readme import blocks

NOT_YET = {"normal_rsample"}
"""Those that none uses. It only gets shorter: what is new comes with a use."""

GUIDES = re.compile(r"guide\.md|(guides|coming_from)/.*|integrations_.*")


def public():
    """The functions and classes that have a signature, by their own names."""
    lines = (TESTS / "signatures.txt").read_text(encoding="utf-8").splitlines()
    found = (re.match(r"kofn(?:\.[a-z_]+)*\.(\w+)\(", line) for line in lines)
    return {match[1] for match in found if match}


def used(code):
    """The names that code calls or passes on; to import one is no use of it."""
    nodes = [*ast.walk(ast.parse(code))]
    originals = {
        alias.asname: alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return {originals.get(name, name) for name in names} | attributes


def everywhere():
    """The code of guides, examples and studies."""
    yield from (
        block.code
        for name, page in PAGES.items()
        if GUIDES.fullmatch(name)
        for block in blocks(page)
    )
    for folder in ("examples", "studies"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.read_text(encoding="utf-8")


def unused():
    return public() - set().union(*map(used, everywhere()))


def test_every_public_function_is_used_by_a_guide_an_example_or_a_study():
    assert sorted(unused() - NOT_YET) == []


def test_what_is_not_used_yet_is_public():
    assert sorted(NOT_YET - public()) == []


def test_an_import_or_a_word_is_no_use():
    assert used("from kofn import soft_topk, topk as largest\n'soft_topk'\nlargest(x, 2)") == {
        *("topk", "x"),
    }
    assert {"softmax_loss", "losses"} <= used("losses.softmax_loss(x, t)")
    assert used("METHODS = [sparsemax]") == {"METHODS", "sparsemax"}
    assert {"soft_topk", "TopKRouter", "KSubset", "accuracy_loss", "quantile"} <= public()
    assert not {"forward", "entropy_of"} & public()
