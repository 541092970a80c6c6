"""Every public function and class is used by a guide, an example or a study."""

import ast
import re
from collections import defaultdict
from importlib import import_module

from places import ROOT, TESTS
from signatures import MODULES
from test_docs import PAGES
from test_readme import blocks

GUIDES = re.compile(r"guide\.md|(guides|coming_from)/.*|integrations_.*")


def public():
    """The functions and classes that have a signature: each, and all of its public names."""
    names, things = defaultdict(set), {}
    for module in map(import_module, MODULES):
        for name in module.__all__:
            names[id(getattr(module, name))].add(f"{module.__name__}.{name}")
    for line in (TESTS / "signatures.txt").read_text(encoding="utf-8").splitlines():
        found = re.match(r"(kofn(?:\.[a-z_]+)*)\.(\w+)\(", line)
        if found:
            module, name = found.groups()
            own = f"{module}.{name}"
            # Integrations have one name each; to look at them would need other libraries.
            whole = module in MODULES
            things[own] = names[id(getattr(import_module(module), name))] if whole else {own}
    return things


def used(code):
    """The names of kofn, from its root, that code calls, passes on or takes as a type.

    An import, a word, a line that is but a name, another library's name and one that the code gives
    a meaning of its own are no use.
    """
    nodes = [*ast.walk(ast.parse(code))]
    meant = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kofn":
            meant.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole, (root, *_) = alias.name, alias.name.split(".")
                if root == "kofn":
                    meant[alias.asname or root] = whole if alias.asname else root
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                meant.pop(name, None)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                meant.pop(name, None)

    def path(node):
        if isinstance(node, ast.Name):
            return meant.get(node.id)
        if isinstance(node, ast.Attribute):
            before = path(node.value)
            return before and f"{before}.{node.attr}"
        return None

    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return {path(node) for node in nodes if id(node) not in alone} - {None}


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


def test_every_public_function_is_used_by_a_guide_an_example_or_a_study():
    found = set().union(*map(used, everywhere()))
    assert [name for name, names in public().items() if not names & found] == []


def test_what_is_no_use_does_not_count():
    for code in (
        "from kofn import soft_topk",
        "from kofn import soft_topk  # soft_topk(scores, 2)\n'soft_topk(scores, 2)'",
        "from kofn import soft_topk\nsoft_topk",
        "from torch import soft_topk\nsoft_topk(scores, 2)",
        "import torch\nfrom kofn import links\ntorch.soft_topk(scores, 2).soft_topk()",
        "from kofn import soft_topk\nsoft_topk = torch.topk\nsoft_topk(scores, 2)",
        "from kofn import soft_topk\ndef f(soft_topk): return soft_topk(scores, 2)",
        "from kofn.distributed import soft_topk\nsoft_topk(scores, 2)",
    ):
        assert "kofn.soft_topk" not in used(code), code
    for code in (
        "from kofn import soft_topk as choose\nchoose(scores, 2)",
        "import kofn as k\nk.soft_topk(scores, 2)",
        "import kofn.distributed\nkofn.soft_topk(scores, 2)",
        "from kofn import soft_topk\nMETHODS = [soft_topk]",
    ):
        assert "kofn.soft_topk" in used(code), code
    assert used("from kofn.nn import DispatchPlan\ndef f(plan: DispatchPlan): ...") == {
        "kofn.nn.DispatchPlan"
    }


def test_what_is_public_has_a_signature_and_one_name_at_least():
    things = public()
    assert {"kofn.soft_topk", "kofn.distributed.soft_topk", "kofn.nn.TopKRouter"} <= {*things}
    assert {"kofn.Link", "kofn.links.Link"} in things.values()
    assert all(things.values())
    assert not any(name.endswith((".forward", ".entropy_of")) for name in things)
