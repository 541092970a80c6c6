"""Compiling in a process that has no library, and the translation that a library is made of."""

import json
import math
import subprocess
import sys

import llvmlite.binding as llvm
import pytest

from kofn.kernels.cpu import every
from kofn.kernels.cpu.compiler import digests, machine, now, shipped
from kofn.kernels.cpu.rows import launch
from kofn.kernels.cpu.rows.layout import SERVED
from kofn.kernels.cpu.runtime.sources import KERNELS, counts

of = digests.of_code
EQUAL = launch.pass_code("pass_loops", "total", 0, 8)
SMALL = launch.pass_code("pass_loops", "total", 0, 4)  # compiled in a blink


def test_code_that_calls_what_a_process_lacks_is_refused():
    with pytest.raises(RuntimeError, match="no_such_function, which is not in this process"):
        machine.load(b"no_such_function\0", "kofn")


def test_compiled_code_calls_nothing_of_pythons():
    text = (
        "declare void @PyErr_Clear()\ndefine void @f() {\n call void @PyErr_Clear()\n ret void\n}"
    )
    with pytest.raises(RuntimeError, match="f must not call PyErr_Clear"):
        machine.native(text, "f")


def test_c_s_mathematics_is_found_in_a_process_that_has_not_loaded_it():
    program = """
import ctypes
from kofn.kernels.cpu.compiler import machine
text = '''declare double @erfc(double)
define double @f(double %x) {
  %y = call double @erfc(double %x)
  ret double %y
}'''
address = machine.load(machine.native(text, "f"), "f")
print(ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(address)(1.0))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert float(found.stdout or "nan") == pytest.approx(math.erfc(1)), found.stderr


@pytest.mark.parametrize("installed", ["0.61.2", "0.99.0rc1"])
def test_a_release_of_numba_that_is_not_known_is_tried(installed, monkeypatch):
    monkeypatch.setattr(now, "version", lambda name: installed)
    now.require_numba()

    def other_parts(code):
        raise AttributeError("no such part")

    monkeypatch.setattr(now, "by_numba", other_parts)
    with (
        pytest.warns(RuntimeWarning, match=f"not with {installed} .*array code serves"),
        pytest.raises(ImportError),
    ):
        now.require_numba()


def test_numba_compiles_a_users_functions_after_a_translation():
    """Both use Numba's own functions for max, min and int; only a user's are finished."""
    program = """
import numba, numpy as np
from kofn.kernels.cpu.rows import launch
from kofn.kernels.cpu.compiler import now
now.by_numba(launch.pass_code("loops", "peak", 0, 4))
now.by_numba(launch.AFTER)

@numba.njit
def largest(x, a, b):
    found = 0.25
    for v in x:
        found = max(found, v)
    return found, int(min(x[0], x[1])), max(a, b), min(a, b)

print(largest(np.array([1.5, 2.5]), 3, 4), largest(np.array([1, 2], np.float32), 3, 4))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "(2.5, 1, 4, 3) (2.0, 1, 4, 3)\n", found.stderr


@pytest.fixture
def stale(monkeypatch, tmp_path):
    """The file that comes with kofn, made from other sources."""
    monkeypatch.setattr(shipped, "FILE", tmp_path / "shipped.xz")
    with monkeypatch.context() as other:
        other.setattr(shipped, "sources", lambda *_: "other")
        shipped.write({SMALL.symbol: ("another", "no code"), EQUAL.symbol: (of(EQUAL), "old code")})
    shipped._read.cache_clear()
    yield
    shipped._read.cache_clear()


def test_what_comes_with_kofn_is_used_for_its_own_sources_only(stale):
    assert now.translated(SMALL).startswith("; ModuleID")
    shipped.write({SMALL.symbol: ("another", "its code")})
    shipped._read.cache_clear()
    assert now.translated(SMALL) == "its code"


def test_of_other_sources_it_serves_functions_that_have_their_digest(stale):
    assert now.translated(EQUAL) == "old code"
    assert now.digest(EQUAL) == of(EQUAL)
    assert now.digest(SMALL) == of(SMALL) != "another"


def test_a_function_of_which_nobody_can_tell_is_translated(stale, monkeypatch):
    shipped.write({SMALL.symbol: ("", "old code")})
    shipped._read.cache_clear()
    monkeypatch.setattr(shipped, "sources", lambda *_: "other")
    monkeypatch.setattr(digests, "of_code", lambda code: "")
    assert now.translated(SMALL).startswith("; ModuleID")


def test_all_compiled_code_counts_among_the_sources():
    for file in (KERNELS / "cpu").rglob("*.py"):
        data = file.read_bytes()
        if b"import plain" in data or b"import inline" in data:
            assert counts(file, data), file


@pytest.mark.parametrize("content", [None, b"", b"damaged"])
def test_without_that_file_numba_translates(stale, content):
    shipped.FILE.unlink()
    if content is not None:
        shipped.FILE.write_bytes(content)
    assert now.translated(SMALL).startswith("; ModuleID")


for_this_system = pytest.mark.skipif(
    llvm.get_process_triple() != "x86_64-unknown-linux-gnu", reason="made for another system"
)


@for_this_system
def test_every_kernel_comes_with_kofn():
    """Otherwise a library takes minutes more: run `make kernels`."""
    assert shipped.is_of_these_sources()
    assert {*shipped.contents()} == {code.symbol for code in every.functions(SERVED, (4, 8))}


@for_this_system
def test_what_comes_with_kofn_names_no_file():
    """As an error that Numba's own code raises would: that of a power of two integers."""
    assert [symbol for symbol, known in shipped.contents().items() if ".py" in known.text] == []


@for_this_system
@pytest.mark.full
def test_what_comes_with_kofn_is_of_its_sources():
    # In a process of its own: Numba's code depends on what it has compiled before.
    program = """
import json
from kofn.kernels.cpu.rows import launch
from kofn.kernels.cpu.compiler import now
some = [launch.pass_code("loops", name, 0, 4) for name in ("statistics", "evaluate", "weigh")]
print(json.dumps({code.symbol: now.by_numba(code) for code in (launch.FORWARD, *some)}))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    from wheels.shipped import renamed  # which compares all of them, for a release

    for symbol, code in json.loads(run.stdout).items():
        assert renamed(code) == renamed(shipped.contents()[symbol].text), symbol


def test_a_library_has_what_calls_need():
    codes = {code.symbol for code in every.functions(SERVED, (4, 8))}
    calls = [(launch.FORWARD, False), (launch.AFTER, True), (launch.AFTER, False)]
    calls += [(launch.COMPARE, True), (launch.COMPARE, False)]
    for kind in SERVED:
        for n in (1, 128, 129, 100_000):
            for code, cotangent in calls:
                needed = launch.passes_of(code, kind, 4, n, cotangent)
                assert {code.symbol, *(each.symbol for each in needed)} <= codes


def test_numba_compiles_others_functions_as_before():
    from numba import njit

    now.translated(SMALL)

    @njit
    def double(x):
        return 2 * x

    assert double(21) == 42
    assert double(1.5) == 3
