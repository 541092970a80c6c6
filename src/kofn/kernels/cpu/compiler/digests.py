"""A digest of a compiled function: of its own code and of all that it reads, however far away.

The library and `shipped.xz` know each function by its digest, and serve it as long as that stays:
after a change, only what depends on the changed lines is compiled again. Digests are taken of
functions as they are in memory, not of files. So it does not matter in which room a function
stands, or whether it was made: by another function, from text, with other globals. Comments,
docstrings and places of lines do not count. What counts is what Numba sees: byte code, constants,
defaults, values in closures, the globals that are named, overloads, intrinsics and options.

A value of a kind that is not known here is refused, and then the function is compiled. Byte code is
that of a release of Python; by another one than made the library, all is compiled after a change.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from kofn.kernels.cpu.compiler.private import Dispatcher, Intrinsic, TypedSignature, overloads_of
from kofn.kernels.cpu.runtime.code import Code
from kofn.kernels.cpu.runtime.layout import ASKED
from kofn.kernels.cpu.runtime.sources import digest

_HOME = "kofn.kernels.cpu"

OUTSIDE = {*sys.stdlib_module_names, "numpy", "numba", "llvmlite"}
"""The packages whose parts are known by their names."""

HIDDEN = {"getattr", "globals", "vars", "eval", "exec", "import_module", "__import__"}
"""What reads values that byte code does not name."""

_PLAIN = type(None), bool, int, float, complex, str, bytes, type(Ellipsis)
_TOLD = np.dtype, np.generic, types.Type, TypedSignature, ir.Type
"""Kinds of values that their text tells completely."""

_CYCLIC = FunctionType, Dispatcher, Intrinsic, type, ModuleType
"""What may come back to itself: a function that calls itself, say."""

_IMPORT = dis.opmap["IMPORT_NAME"]
_HAS_DOCSTRING = 0x4000000


class UnknownError(Exception):
    """Nobody can tell whether a value, which compiled code depends on, is as it was."""


def made(code: Code) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a function as Python has it, and the options that Numba takes for it."""
    name, _, of = code.name.partition("@")
    function, kind = getattr(import_module(f"{_HOME}.{code.module}"), name), code.kind
    if code.is_remade:
        own = import_module(f"{_HOME}.compiler.own")
        function, kind = own.remade(kind)(function), own.NEXT
    if of:
        file, _, name = of.partition(":")
        function = partial(function, getattr(import_module(file), name))
    if not code.number:
        return function, {"error_model": "numpy"}
    options = import_module(f"{_HOME}.rows.frame").OPTIONS
    return function(kind, np.dtype(code.number).type), options


def of_code(code: Code) -> str:
    """Return the digest of a compiled function as it is now, or "" if nobody can tell."""
    try:
        return of(*made(code), code)
    except UnknownError:
        return ""


def of(*values: object) -> str:
    """Return the digest of functions and other values.

    Raises:
        UnknownError: they depend on something that this file does not know.
    """
    return digest(_compilers(), *_texts(values))


@cache
def _compilers() -> bytes:
    """What makes machine code of every function."""
    here = Path(__file__).parent
    files = ((here / f"{name}.py").read_bytes() for name in ("translate", "machine", "target"))
    return b"\0".join((f"{sys.implementation.cache_tag} {sorted(ASKED)}".encode(), *files))


def _texts(values: object) -> Iterator[bytes]:
    """Describe a value and what it holds; what has an identity once, and then by its number."""
    left: list[Any] = [values]
    numbers: dict[int, int] = {}
    while left:
        value = left.pop()
        if id(value) in numbers:
            yield f"again {numbers[id(value)]}".encode()
            continue
        text, parts = _described(value)
        if isinstance(value, _CYCLIC):
            numbers[id(value)] = len(numbers)
        left += reversed(parts)
        yield f"{type(value).__name__} {len(parts)} {text}".encode()


def _described(value: Any) -> tuple[str, list[Any]]:
    """Return a value's own text, and the values that it holds."""
    if isinstance(value, (_PLAIN, _TOLD)):
        return repr(value), []
    if isinstance(value, (tuple, list)):
        return "", [*value]
    if isinstance(value, (set, frozenset)):
        return "", sorted(value, key=repr)
    if isinstance(value, dict):
        return "", [part for pair in value.items() for part in pair]
    if isinstance(value, np.ndarray) and value.dtype.names is None and value.dtype != object:
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}", []
    if isinstance(value, CodeType):
        return _of_code(value)
    if isinstance(value, Dispatcher):
        return "", [value.py_func, sorted(value.targetoptions.items()), value.locals]
    if isinstance(value, Intrinsic):
        return "", [value._defn, value._prefer_literal, value._ctor_kwargs]
    if isinstance(value, FunctionType) and not is_outside(value):
        return _of_function(value)
    if isinstance(value, MethodType):
        return "", [value.__func__, value.__self__]
    if is_outside(value):
        return _name_of(value), [*overloads_of(value)]
    if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
        return value.__qualname__, [vars(value)[name] for name in ("_fields", "_field_defaults")]
    raise UnknownError(f"{value!r}, of {type(value)}")


def _name_of(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    return f"{value.__module__}.{getattr(value, '__qualname__', value)}"


def is_outside(value: Any) -> bool:
    """Return whether a module, class or function is of another package, and not made of text."""
    if not isinstance(value, (ModuleType, type)) and not callable(value):
        return False
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if isinstance(value, FunctionType):  # a made one has the module of its maker
        name = value.__globals__.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] in OUTSIDE


def _of_code(code: CodeType) -> tuple[str, list[Any]]:
    if _IMPORT in code.co_code[::2] or HIDDEN & {*code.co_names}:
        raise UnknownError(f"{code.co_name} reads values without naming them")
    constants = list(code.co_consts)
    has_docstring = sys.version_info < (3, 13) or code.co_flags & _HAS_DOCSTRING
    if has_docstring and constants and isinstance(constants[0], str):
        constants[0] = None
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return "", [code.co_code, code.co_exceptiontable, counts, names, tuple(constants)]


def _of_function(function: FunctionType) -> tuple[str, list[Any]]:
    names = sorted(names_in(function.__code__))
    here = function.__globals__
    cells = (each.cell_contents for each in function.__closure__ or ())
    read: dict[str, Any] = dict(zip(function.__code__.co_freevars, cells, strict=True))
    read |= {f"global {name}": here[name] for name in names if name in here}
    within = [_within(value, names) for value in read.values()]
    given = function.__defaults__, function.__kwdefaults__
    return "", [function.__code__, given, [*read], within, [*overloads_of(function)]]


def names_in(code: CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*map(names_in, inner))


def _within(value: Any, names: list[str]) -> Any:
    """Return a value; for a module, what of these names it has, the only part that can be read."""
    if not isinstance(value, ModuleType) or is_outside(value):
        return value
    has = vars(value)
    return {name: _within(has[name], names) for name in names if name in has}
