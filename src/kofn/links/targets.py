"""A link's formulas in the words of another target than array code: Numba's or Triton's."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import textwrap
import zlib
from collections.abc import Callable, Container, Mapping
from types import FunctionType
from typing import Any

from kofn.links import vocabulary

Made = Any  # what a target makes of a function


class Target:
    """Translates formulas: words, constants and the functions that they call, each only once."""

    def __init__(
        self,
        words: Mapping[str, Any],
        make: Callable[[FunctionType, dict[str, Any]], Made],
        number: Callable[[float], Any] = float,
    ) -> None:
        self.words, self._make, self._number = words, make, number
        self._made: dict[FunctionType, Made] = {}

    def __call__(self, function: Any) -> Made:
        if function not in self._made:
            called = {name: self.named(function, name) for name in names_of(function)}
            self._made[function] = self._make(function, called)
        return self._made[function]

    def named(self, function: FunctionType, name: str) -> Any:
        """Return what a name of a formula means here."""
        value = meanings_of(function)[name]
        if is_word(function, name):
            return self.words.get(name)  # what has none is not called, or is written otherwise
        return self(value) if isinstance(value, FunctionType) else self._number(value)


def meanings_of(function: FunctionType) -> dict[str, Any]:
    """Return what a formula takes from its file, or from a function that made it, by name."""
    named = function.__code__.co_names
    here = {name: function.__globals__[name] for name in named if name in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return here | {name: cell.cell_contents for name, cell in cells}


def names_of(function: FunctionType) -> list[str]:
    """Return the names of words, constants and functions that a formula takes."""
    return [*meanings_of(function)]


def arguments_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a formula's arguments."""
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


def rebound(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """Return the same code with other meanings of its names."""
    if function.__closure__:
        return restated(function, names)
    return FunctionType(function.__code__, names, function.__name__)


def text_of(formulas: Mapping[str, Any], traits: object) -> str:
    """Return what tells formulas from others, in any process; of no known source, never again."""
    from hashlib import sha256  # OpenSSL: a tenth of `import kofn`

    left, told, parts = [*formulas.items()], set(), [repr(traits)]
    try:
        for name, value in left:
            parts.append(f"{name} {value!r}" if isinstance(value, int | float) else name)
            if isinstance(value, FunctionType) and value not in told:
                told.add(value)
                parts.append(ast.unparse(parsed(value)))
                others = meanings_of(value)
                left += [
                    (each, others[each]) for each in sorted(others) if not is_word(value, each)
                ]
    except (OSError, SyntaxError, ValueError, AssertionError):
        return os.urandom(6).hex()
    return sha256("\n".join(parts).encode()).hexdigest()[:12]


def flaw_of(formula: FunctionType, words: Container[str]) -> str | None:
    """Return why a formula cannot be written in these words; None if it can."""
    try:
        tree, known = parsed(formula), meanings_of(formula)
    except (OSError, SyntaxError, ValueError, AssertionError):
        return "its source cannot be read"
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    own = variables_of(tree) | {each.arg for each in tree.args.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            return f"it takes `{ast.unparse(node)}`; name the number, or a word, outside of it"
        if isinstance(node, ast.For | ast.While | ast.Lambda | ast.Try | ast.With):
            return f"it has more than arithmetic: {type(node).__name__.lower()}"
    for name in {node.id for node in named} - own:
        value = known.get(name)
        if name not in known or not isinstance(value, int | float | FunctionType):
            return f"it takes `{name}`, which is no word of kofn.links.vocabulary and no number"
        if is_word(formula, name):
            if name not in words:
                return f"there is no `{name}` for it"
        elif isinstance(value, FunctionType):
            inner = flaw_of(value, words)
            if inner:
                return f"it calls {name}: {inner}"
    return None


def restated(function: FunctionType, names: dict[str, Any], typed: bool = False) -> FunctionType:
    """Return the same function with other meanings of its names, without types and docstring."""
    tree = parsed(function)
    if typed:
        constants = {name for name, value in names.items() if isinstance(value, float)}
        tree = Typed(tree.args.args[0].arg, constants).visit(tree)
    return written(ast.unparse(ast.fix_missing_locations(tree)), tree.name, names)


def parsed(function: FunctionType) -> ast.FunctionDef:
    """Return a formula without types and docstring."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(made, ast.FunctionDef)
    for each in made.args.args:
        each.annotation = None
    made.returns, made.decorator_list = None, []
    if isinstance(made.body[0], ast.Expr) and isinstance(made.body[0].value, ast.Constant):
        del made.body[0]
    return made


class Chosen:
    """One function of the formulas of many kinds: `if kind == 0:` and the formula itself.

    Calls would do the same, but a compiler that simplifies each function first makes other code of
    them: sums over a row came out in another order.
    """

    def __init__(self, target: Target, name: str, takes: str, names: dict[str, Any]) -> None:
        self.target, self.name, self.takes, self.names = target, name, takes, dict(names)
        self.branches: list[ast.stmt] = []

    def add(self, number: int, formula: FunctionType, given: Mapping[str, str]) -> None:
        """Add a kind's formula; arguments that are `given` are computed so."""
        tree = parsed(formula)
        own = {name: f"{name}_{number}" for name in names_of(formula) if not is_word(formula, name)}
        # A variable may be called as what another branch takes from outside.
        own |= {name: f"{name}_{number}" for name in variables_of(tree) & {*self.names}}
        for name in names_of(formula):
            self.names[own.get(name, name)] = self.target.named(formula, name)
        body = [Renamed(own).visit(each) for each in tree.body]
        computed = [f"{name} = {given[name]}" for name in arguments_of(formula) if name in given]
        body[:0] = ast.parse("\n".join(computed)).body
        test = ast.parse(f"kind == {number}", mode="eval").body
        self.branches.append(ast.If(test, body, []))

    def made(self, others: str) -> FunctionType:
        """Return the function, which for other kinds returns `others`, by default the last."""
        if others:
            self.branches += ast.parse(f"def f():\n    return {others}").body[0].body  # type: ignore[attr-defined]
        else:
            last = self.branches.pop()
            assert isinstance(last, ast.If)
            self.branches += last.body
        (tree,) = ast.parse(f"def {self.name}(kind, {self.takes}):\n    pass").body
        assert isinstance(tree, ast.FunctionDef)
        tree.body = self.branches
        constants = {name for name, value in self.names.items() if isinstance(value, float)}
        tree = Typed(self.takes.split(",")[0], constants).visit(tree)
        return written(ast.unparse(ast.fix_missing_locations(tree)), self.name, self.names)


def variables_of(tree: ast.AST) -> set[str]:
    """Return the names that a formula gives to what it computes."""
    named = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {node.id for node in named if isinstance(node.ctx, ast.Store)}


class Renamed(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


def is_word(function: FunctionType, name: str) -> bool:
    """Return whether a name of a formula is one of the vocabulary's."""
    return getattr(meanings_of(function)[name], "__module__", None) == vocabulary.__name__


SYNTAX = "where", "divided"
"""The words that `Typed` writes as branches and quotients, not as calls."""


class Typed(ast.NodeTransformer):
    """Writes a formula as one would for one number of a static type.

    Numbers are of the type of the first argument: a plain 0.5 would be a float64. `where` and & are
    branches, and `divided` is a quotient, of which a compiler makes vector code. All of this
    decides, too, how many vectors it adds up side by side, and so the last bit of a sum.
    """

    def __init__(self, first: str, constants: set[str]) -> None:
        self.first, self.constants = first, constants
        self.numbers: dict[str, str] = {}  # their names, by their texts

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        lines = [f"{name} = real({self.first}, {text})" for text, name in self.numbers.items()]
        node.body[:0] = ast.parse("\n".join(lines)).body
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test).startswith("kind == "):
            node.body = [self.visit(each) for each in node.body]
            return node
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return self._number(repr(float(node.value)))
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._number(node.id) if node.id in self.constants else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        word = node.func.id if isinstance(node.func, ast.Name) else ""
        if word == "like":
            return self.visit(node.args[1])
        if word == "where":
            node.args[0] = between(node.args[0])
        self.generic_visit(node)
        if word == "divided":
            return ast.BinOp(node.args[0], ast.Div(), node.args[1])
        return ast.IfExp(*node.args) if word == "where" else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        is_and = isinstance(node.op, ast.BitAnd)
        return ast.BoolOp(ast.And(), [node.left, node.right]) if is_and else node

    def _number(self, text: str) -> ast.AST:
        name = self.numbers.setdefault(text, f"number_{len(self.numbers)}")
        return ast.Name(name, ast.Load())


def between(condition: ast.expr) -> ast.expr:
    """Return (z > low) & (z < high) as low < z < high, others as they are."""
    match condition:
        case ast.BinOp(
            ast.Compare(ast.Name(z), [ast.Gt()], [low]),
            ast.BitAnd(),
            ast.Compare(ast.Name(same) as middle, [below], [high]),
        ) if z == same:
            return ast.Compare(low, [ast.Lt(), below], [middle, high])
    return condition


def written(text: str, name: str, names: dict[str, Any]) -> FunctionType:
    """Return a function from its text, which compilers can ask for by the usual way."""
    file = f"<{name} {zlib.crc32(text.encode()):08x}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    exec(compile(text, file, "exec"), names)
    made: FunctionType = names[name]
    return made
