"""Write the signatures of everything public: `make signatures` puts them in tests/signatures.txt.

The test compares the file with the code, so that no public name, argument or default changes
unseen.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import kofn

SNAPSHOT = Path(__file__).with_name("signatures.txt")
PACKAGE = Path(kofn.__file__).parent

MODULES = (
    "kofn",
    "kofn.links",
    "kofn.losses",
    "kofn.estimators",
    "kofn.metrics",
    "kofn.schedules",
    "kofn.balance",
    "kofn.classic",
    "kofn.projections",
    "kofn.distributed",
    "kofn.nn",
    "kofn.streaming",
    "kofn.feature_selection",
)

NOBODY = "Never"
"""The type of a parameter that takes nothing."""

METHODS = (FunctionType, classmethod, staticmethod)

# The packages that these import need not be installed, so their source is read.
SOURCES = (
    "onnx",
    "integrations.dictionary_learning",
    "integrations.expert_bias",
    "integrations.saelens",
    "integrations.torch_geometric",
    "integrations.transformers",
)


def everything() -> list[str]:
    """Return a line for each public function, class, method and object."""
    lines = [line for name in MODULES for line in of_module(importlib.import_module(name))]
    return lines + [line for name in SOURCES for line in of_source(name)]


def functions() -> dict[FunctionType, str]:
    """Return every public function of modules that need no other library, and its name."""
    found: dict[FunctionType, str] = {}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            if inspect.isfunction(function := getattr(module, name)):
                found.setdefault(function, f"{module.__name__}.{name}")
    return found


def of_module(module: ModuleType) -> Iterator[str]:
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.ismodule(found):
            continue
        whole = f"{module.__name__}.{name}"
        if is_instance(found):
            yield f"{whole}: {'Link' if isinstance(found, kofn.Link) else type(found).__name__}"
            continue
        yield whole + arguments(found)
        # A class that stands in two modules is written in the first.
        if inspect.isclass(found) and not (module is not kofn and hasattr(kofn, name)):
            yield from of_class(whole, found)


def is_instance(found: Any) -> bool:
    return not inspect.isclass(found) and not inspect.isroutine(found)


def of_class(whole: str, found: type) -> Iterator[str]:
    """Public methods and properties that kofn defines and documents; a Link's are its arguments."""
    if found is kofn.Link:
        return
    ours = [each for each in found.__mro__ if each.__module__.startswith("kofn.")]
    names = {name for each in ours for name in vars(each) if not name.startswith("_")}
    for name in sorted(names):
        member = inspect.getattr_static(found, name)
        if isinstance(member, property):
            yield f"{whole}.{name}: property"
        elif isinstance(member, METHODS) and getattr(found, name).__doc__:
            yield f"{whole}.{name}{arguments(getattr(found, name))}"


def arguments(found: Any) -> str:
    """Return names, kinds and defaults of the parameters; type checkers see the types.

    `**others: Never`, with which functions answer for words that are not theirs, is left out.
    """
    if getattr(found, "_is_protocol", False):
        return ""
    signature = inspect.signature(found)
    plain = [
        bare(each)
        for name, each in signature.parameters.items()
        if name != "self" and each.annotation != NOBODY
    ]
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


def bare(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter without its type; a class as a default by its name."""
    default = parameter.default
    if inspect.isclass(default) and default is not parameter.empty:
        default = Named(default.__name__)
    return parameter.replace(annotation=parameter.empty, default=default)


class Named(str):
    """A name that is written without quotes."""

    __repr__ = str.__str__


def of_source(name: str) -> Iterator[str]:
    for public, node in public_of_source(name):
        yield f"kofn.{name}.{public}({arguments_of_source(node)})"


def public_of_source(name: str) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Return what is public in a module, as its source has it."""
    home = PACKAGE.joinpath(*name.split("."))
    paths = sorted(home.rglob("*.py")) or [home.with_suffix(".py")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    defined = {
        node.name: node
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    for public in names_listed(trees[0]):
        yield public, defined[public]


def names_listed(tree: ast.Module) -> list[str]:
    """Return `__all__` of a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError("a public module needs __all__")


def arguments_of_source(node: ast.FunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.ClassDef):
        made = [each for each in node.body if getattr(each, "name", "") == "__init__"]
        if not made:
            return ""
        node = made[0]
    given = node.args
    if given.kwarg and given.kwarg.annotation and ast.unparse(given.kwarg.annotation) == NOBODY:
        given.kwarg = None
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if each is not None:
            each.annotation = None
    given.args = [each for each in given.args if each.arg != "self"]
    return ast.unparse(given)


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(everything()) + "\n", encoding="utf-8")
    print(f"wrote {SNAPSHOT}")
