"""The digest of a compiled function: it follows all that the function reads, and nothing else."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import pytest

from kofn.kernels.cpu import every
from kofn.kernels.cpu.compiler import digests
from kofn.kernels.cpu.rows.layout import SERVED
from kofn.kernels.cpu.runtime.sources import KERNELS, counts, shared

LAYOUT = """
from types import ModuleType
X, OTHER = 11, 12
inner = ModuleType("ours.inner")
inner.Y = 13
"""
SOURCE = '''
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

LIMIT, SHAPE, OPTIONS = 3, np.dtype([("a", "f8", (4,))]), {"contract", "nsz"}
TABLE = (1.0, (2.0, -0.0))
UNREAD = 1

@njit(error_model="numpy")
def deepest(x):
    return x + 1.0

@njit(fastmath=OPTIONS)
def callee(x):
    return deepest(x) * LIMIT

def stub(x):
    """What an overload stands for."""

def _series():
    return 4.0

@overload(stub, jit_options={"forceinline": True})
def _(x):
    by = np.float32(_series()) if x == types.float32 else _series()
    return lambda x: x - by

@intrinsic
def added(typingctx, x):
    def codegen(context, builder, signature, arguments):
        return builder.fadd(arguments[0], ir.Constant(ir.DoubleType(), 5.0))

    return x(x), codegen

def unread(x):
    return x + 6.0

def given(x):
    return x + 7.0

def maker(entry, number):
    """Make a function."""
    half = number(0.5)

    def made(x, more=8.0, *, last=9.0):
        """Says nothing."""
        def inside(y):
            return y * 10.0
        read = TABLE[1][1] + layout.X + layout.inner.Y
        return entry(callee(x)) + half + stub(x) + added(x) + read

    return made

function = maker(njit(given), np.float64)
'''

CHANGES = {
    "a callee of a callee": ("x + 1.0", "x - 1.0"),
    "its constant": ("x + 1.0", "x + 1.5"),
    "the type of a constant": ("x + 1.0", "x + 1"),
    "a global of a callee": ("LIMIT, SHAPE, OPTIONS = 3", "LIMIT, SHAPE, OPTIONS = 4"),
    "a sign of 0 in a global": ("-0.0", "0.0"),
    "options": ('error_model="numpy"', 'error_model="python"'),
    "options by a global": ('{"contract", "nsz"}', '{"contract"}'),
    "an overload": ("x - by", "x * by"),
    "options of an overload": ('"forceinline": True', '"forceinline": False'),
    "what an overload calls": ("return 4.0", "return 4.5"),
    "an intrinsic": ("fadd", "fsub"),
    "a constant of an intrinsic": ("5.0", "5.5"),
    "a function in a closure": ("x + 7.0", "x + 7.5"),
    "a number in a closure": ("number(0.5)", "number(0.25)"),
    "the type of a number in a closure": ("np.float64)", "np.float32)"),
    "a default": ("8.0", "8.5"),
    "a default of what is given by name": ("9.0", "9.5"),
    "a function inside": ("10.0", "10.5"),
    "a number of a module": ("X, OTHER = 11", "X, OTHER = 14"),
    "a number of a module of a module": ("inner.Y = 13", "inner.Y = 14"),
}
OTHERS = {
    "nothing": ("", ""),
    "what is not called": ("x + 6.0", "x + 6.5"),
    "a global that is not read": ("UNREAD = 1", "UNREAD = 2"),
    "another number of a module": ("OTHER = 11, 12", "OTHER = 11, 15"),
    "a comment": ("LIMIT, SHAPE", "# more\n\nLIMIT, SHAPE"),
    "docstrings": ('"""Says nothing."""', '"""Says more."""'),
}


def function_of(change=("", ""), **more):
    """The function of these sources, in which a text is changed."""
    layout = ModuleType("ours.layout")
    assert change[0] in SOURCE + LAYOUT
    exec(LAYOUT.replace(*change, 1), vars(layout))
    names = {"__name__": "ours", "layout": layout}
    exec(compile(SOURCE.replace(*change, 1), "made.py", "exec"), names)
    return names["function"]


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_a_function_reads_changes_its_digest(what):
    assert digests.of(function_of(CHANGES[what])) != digests.of(function_of())


@pytest.mark.parametrize("what", OTHERS)
def test_another_change_does_not(what):
    assert digests.of(function_of(OTHERS[what])) == digests.of(function_of())


def test_a_function_that_is_made_with_other_globals_has_another_digest():
    """So links may give their formulas the functions of a compiler."""

    def formula(z):
        return exp(z) + one  # noqa: F821

    def made(**names):
        return digests.of(FunctionType(formula.__code__, names))

    assert made(exp=function_of(), one=1.0) == made(exp=function_of(), one=1.0, two=2.0)
    assert made(exp=function_of(), one=1.0) != made(exp=function_of(), one=np.float32(1))
    assert made(exp=function_of(CHANGES["an overload"]), one=1.0) != made(exp=function_of(), one=1)
    assert made(exp=np.exp, one=1.0) != made(exp=np.exp2, one=1.0)


def test_functions_that_call_each_other_have_a_digest():
    text = (
        "def even(n):\n return n == 0 or odd(n - 1)\ndef odd(n):\n return n != {} and even(n - 1)"
    )
    found = []
    for number in (0, 0, 1):
        names = {}
        exec(text.format(number), names)
        found.append(digests.of(names["even"]))
    assert found[0] == found[1] != found[2]


class Unknown:
    pass


@pytest.mark.parametrize("text", ["unknown", "import math", "getattr(x, 'real')"])
def test_what_nobody_can_tell_is_refused(text):
    names = {"unknown": Unknown()}
    exec(f"def function(x):\n    {text}\n    return x", names)
    with pytest.raises(digests.UnknownError):
        digests.of(names["function"])


def test_all_that_digests_come_from_counts_among_the_sources(monkeypatch):
    """Else a change there would leave the digest of all sources, which is asked first."""
    files = set()
    described = digests._of_code

    def seen(code):
        files.add(code.co_filename)
        return described(code)

    monkeypatch.setattr(digests, "_of_code", seen)
    found = {code: digests.of_code(code) for code in every.functions(SERVED, (4,))}
    assert all(found.values())
    ours = {os.path.realpath(file) for file in files if os.sep + "kofn" + os.sep in file}
    counted = {os.path.realpath(file) for file in _counted()}
    assert len(ours) > 20
    assert ours <= counted
    # Nor do the numbers of such files come from elsewhere.
    left = {path for file in ours for path in _imported(file)} - {*map(Path, counted)}
    assert {str(path.relative_to(KERNELS.parent)) for path in left} == set()


def _counted():
    ours = [file for file in (KERNELS / "cpu").rglob("*.py") if counts(file, file.read_bytes())]
    return [*ours, *shared()]


def _imported(file):
    """The files of kofn of which another takes names when it is imported."""
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kofn."):
            path = KERNELS.parent.joinpath(*node.module.split(".")[1:])
            names = [path / f"{each.name}.py" for each in node.names]
            yield from ([path.with_suffix(".py")] if path.with_suffix(".py").exists() else names)


CHANGED = """
import numpy as np, torch, kofn
from kofn.kernels.cpu.compiler import now
from kofn.kernels.cpu.runtime import library
from kofn.kernels.cpu.xla import header
assert library.is_stale() and library.found() is None, library.FILE
translated, find = [], now.translated
now.translated = lambda code: (translated.append(code.symbol), find(code))[1]
x = torch.linspace(-1, 1, 300).reshape(3, 100).requires_grad_()
p = kofn.soft_topk(x, 7)
kofn.topk(x, 3), kofn.KSubset(x, 3).marginals()
print(*translated, header.found() is not None)
p[:, 0].sum().backward()
print(*translated)
"""


def test_after_a_change_only_what_it_touches_is_compiled(tmp_path):
    from kofn.kernels.cpu.runtime import library

    if library.found() is None:
        pytest.skip("a system that has no library of kernels")
    source = KERNELS.parent
    shutil.copytree(source, tmp_path / "kofn", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "kofn" / "kernels" / "cpu" / "rows" / "backward.py"
    text = path.read_text(encoding="utf-8")
    assert "return (slope / total, product / total)" in text
    path.write_text(text.replace("return (slope / total", "return (slope / total + 0.0"), "utf-8")
    run = subprocess.run(
        [sys.executable, "-c", CHANGED],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.stdout == "True\nkofn_rows_worker_after\n", run.stderr
