"""Compiled functions on disk: what a later process finds there, and what may be wrong with it."""

import json
import math
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kofn.kernels.cpu import every
from kofn.kernels.cpu.rows import launch
from kofn.kernels.cpu.rows.layout import SERVED
from kofn.kernels.cpu.runtime import machine, native, shipped, store

SMALL = launch.pass_code("loops", "total", 0, 4)  # compiled in a blink


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KOFN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(native, "tell", None)
    return tmp_path


@pytest.fixture
def compiled(monkeypatch):
    """The names of functions that are compiled, not found."""
    names, original = [], native.by_numba

    def noted(code):
        names.append(code.name)
        return original(code)

    monkeypatch.setattr(native, "translated", noted)
    return names


def in_a_new_process(code):
    """The address as a process finds it that has not looked it up before, and Σx by it."""
    address = native._stored(code) or native._compiled(code)
    x, sums = np.arange(5, dtype=np.float32), np.zeros(8)
    function = type(native.function(code))(address)
    function(x.ctypes.data, 0, 0, 5, sums.ctypes.data, 0, 0, 0, 0, 0)
    return address, sums[0]


def file_of(code, folder):
    return folder / native._folder() / code.symbol


def test_a_second_process_compiles_nothing_and_imports_no_compiler(folder):
    program = """
import hashlib, sys
import numpy as np
import kofn
from kofn.kernels.cpu.runtime import native
original, native.translated = native.translated, lambda code: print(code.name) or original(code)
x = np.linspace(-1, 1, 300, dtype=np.float32)
print(hashlib.sha256(kofn.soft_topk(x, 7).tobytes()).hexdigest(), "numba" in sys.modules)
"""
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=300
        ).stdout.split()
        for _ in range(2)
    )
    assert len(second) == 2
    assert second[0] == first[-2]
    assert second[1] == "False"


def test_what_was_compiled_is_found(folder, compiled):
    assert in_a_new_process(SMALL)[1] == 10
    assert in_a_new_process(SMALL)[1] == 10
    assert compiled == ["total"]


@pytest.mark.parametrize(
    "spoiled",
    [
        b"",
        b"kofn 1\n",
        pytest.param(lambda data: data[:-1], id="cut"),
        pytest.param(lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], id="changed"),
        pytest.param(lambda data: b"x" * len(data), id="other"),
    ],
)
def test_a_file_that_is_not_whole_is_written_anew(spoiled, folder, compiled):
    in_a_new_process(SMALL)
    file = file_of(SMALL, folder)
    whole = file.read_bytes()
    file.write_bytes(spoiled(whole) if callable(spoiled) else spoiled)
    assert in_a_new_process(SMALL)[1] == 10
    assert compiled == ["total", "total"]
    assert file.read_bytes() == whole  # the same source makes the same code


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path, monkeypatch, compiled):
    """A file where the folder should be refuses root, too."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KOFN_CACHE_DIR", str(tmp_path / "file"))
    assert in_a_new_process(SMALL)[1] == 10
    assert in_a_new_process(SMALL)[1] == 10
    assert compiled == ["total", "total"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do it all")
def test_a_read_only_folder_costs_time_only(folder, compiled):
    folder.chmod(0o500)
    assert in_a_new_process(SMALL)[1] == 10
    assert list(folder.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "replace", full)
    assert in_a_new_process(SMALL)[1] == 10
    assert list((folder / native._folder()).iterdir()) == []


def test_an_interrupt_while_writing_leaves_nothing_behind(folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(store.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write("some/name", b"data")
    assert list((folder / "some").iterdir()) == []


def test_threads_may_fill_a_folder_at_once(folder):
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda i: store.write("some/name", bytes([i]) * 100_000), range(40)))
    assert all(done)
    assert len(set(store.read("some/name"))) == 1
    assert [file.name for file in (folder / "some").iterdir()] == ["name"]


@pytest.mark.parametrize("unset", [(), ("KOFN_CACHE_DIR",), ("KOFN_CACHE_DIR", "NUMBA_CACHE_DIR")])
def test_the_folder_is_that_of_the_environment(unset, monkeypatch, tmp_path):
    monkeypatch.setenv("KOFN_CACHE_DIR", str(tmp_path / "ours"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    for name in unset:
        monkeypatch.delenv(name)
    expected = ("ours", "numba", "user")[len(unset)]
    if expected != "user" or sys.platform == "linux":
        assert expected in store.folder().parts


def test_code_that_calls_what_a_process_lacks_is_refused():
    with pytest.raises(RuntimeError, match="no_such_function, which is not in this process"):
        machine.load(b"no_such_function\0", "kofn")


def test_compiled_code_calls_nothing_of_pythons():
    text = (
        "declare void @PyErr_Clear()\ndefine void @f() {\n call void @PyErr_Clear()\n ret void\n}"
    )
    with pytest.raises(RuntimeError, match="f must not call PyErr_Clear"):
        machine.native(text, "f")


def test_another_user_may_read_the_files(folder):
    before = os.umask(0o022)
    try:
        store.write("some/name", b"data")
    finally:
        os.umask(before)
    assert (folder / "some" / "name").stat().st_mode & 0o777 == 0o644


def test_c_s_mathematics_is_found_in_a_process_that_has_not_loaded_it():
    program = """
import ctypes
from kofn.kernels.cpu.runtime import machine
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
    monkeypatch.setattr(native, "version", lambda name: installed)
    native.require_numba()

    def other_parts(code):
        raise AttributeError("no such part")

    monkeypatch.setattr(native, "by_numba", other_parts)
    with (
        pytest.warns(RuntimeWarning, match=f"not with {installed} .*array code serves"),
        pytest.raises(ImportError),
    ):
        native.require_numba()


def test_numba_compiles_a_users_functions_after_a_translation():
    """Both use Numba's own functions for max, min and int; only a user's are finished."""
    program = """
import numba, numpy as np
from kofn.kernels.cpu.rows import launch
from kofn.kernels.cpu.runtime import native
native.by_numba(launch.pass_code("loops", "peak", 0, 4))
native.by_numba(launch.AFTER)

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
        other.setattr(shipped, "sources", lambda: "other")
        shipped.write({SMALL.symbol: "no code"})
    shipped._contents.cache_clear()
    yield
    shipped._contents.cache_clear()


def test_what_comes_with_kofn_is_used_for_its_own_sources_only(stale):
    assert native.translated(SMALL).startswith("; ModuleID")
    shipped.write({SMALL.symbol: "its code"})
    shipped._contents.cache_clear()
    assert native.translated(SMALL) == "its code"


def test_all_compiled_code_counts_among_the_sources():
    for file in Path(shipped.__file__).parents[1].rglob("*.py"):
        data = file.read_bytes()
        if b"import plain" in data or b"import inline" in data:
            assert shipped._counts(file, data), file


@pytest.mark.parametrize("content", [None, b"", b"damaged"])
def test_without_that_file_numba_translates(stale, content):
    shipped.FILE.unlink()
    if content is not None:
        shipped.FILE.write_bytes(content)
    assert native.translated(SMALL).startswith("; ModuleID")


for_this_system = pytest.mark.skipif(
    machine.identity().split()[1] != "x86_64-unknown-linux-gnu", reason="made for another system"
)


@for_this_system
def test_every_kernel_comes_with_kofn():
    """Otherwise the first call takes ten seconds more: run `make kernels`."""
    assert {*shipped._contents()} == {code.symbol for code in every.functions(SERVED, (4, 8))}


@for_this_system
def test_what_comes_with_kofn_names_no_file():
    """As an error that Numba's own code raises would: that of a power of two integers."""
    assert [symbol for symbol, code in shipped._contents().items() if ".py" in code] == []


@for_this_system
@pytest.mark.full
def test_what_comes_with_kofn_is_of_its_sources():
    # In a process of its own: Numba's code depends on what it has compiled before.
    program = """
import json
from kofn.kernels.cpu.rows import launch
from kofn.kernels.cpu.runtime import native
some = [launch.pass_code("loops", name, 0, 4) for name in ("statistics", "evaluate", "weigh")]
print(json.dumps({code.symbol: native.by_numba(code) for code in (launch.FORWARD, *some)}))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for symbol, code in json.loads(run.stdout).items():
        assert renamed(code) == renamed(shipped.find(symbol)), symbol


def renamed(text):
    """A module with names in their order, as Numba's tell of addresses and of earlier functions.

    Labels have the names of the functions that were inlined there.
    """
    names: dict[str, str] = {}
    text = re.sub(r"B\d+v\d+B|ILi\d+E", "", text)
    return re.sub(
        r"@[\w.$]+|_ZN[\w.$]+", lambda name: names.setdefault(name[0], f"@{len(names)}"), text
    )


def test_warm_compiles_what_is_asked_for_once(folder, monkeypatch, capsys):
    from kofn.commands import app

    def run(*options):
        with pytest.raises(SystemExit) as end:
            app.app(["warm", *options], prog_name="kofn")
        return end.value.code, capsys.readouterr()

    some = [SMALL, launch.pass_code("loops", "statistics", 0, 4)]
    monkeypatch.setattr(every, "functions", lambda kinds, sizes: some)
    status, printed = run("--link", "logistic", "--dtype", "float32")
    assert status == 0
    assert printed.out.startswith(f"2 functions in {folder}, 2 of them compiled now")
    assert ", 0 of them compiled now" in run()[1].out
    done = json.loads(run("--json")[1].out)
    assert (done["folder"], done["functions"], done["compiled"]) == (str(folder), 2, 0)
    assert "--link must be one of logistic" in run("--link", "cauchy")[1].err
    (folder / "file").write_text("")
    monkeypatch.setenv("KOFN_CACHE_DIR", str(folder / "file"))
    status, printed = run()
    assert status == 2
    assert f"cannot write to {folder / 'file'}" in printed.err


def test_warm_compiles_what_calls_need():
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

    native.translated(SMALL)

    @njit
    def double(x):
        return 2 * x

    assert double(21) == 42
    assert double(1.5) == 3
