"""The library of compiled kernels: what it has, when it serves, and that it is enough."""

import ctypes
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from kofn.kernels.cpu import check, every
from kofn.kernels.cpu.compiler import now, target
from kofn.kernels.cpu.rows import launch
from kofn.kernels.cpu.rows.layout import SERVED
from kofn.kernels.cpu.runtime import library, native, sources, whole
from kofn.kernels.cpu.xla import header
from kofn.kernels.cpu.xla import layout as call

needs_library = pytest.mark.skipif(
    library.found() is None, reason="a system that has no library of kernels"
)
pytestmark = needs_library


def answered(program, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_with_a_library_loads_no_compiler():
    program = """
import sys
import numpy as np
import kofn
x = np.linspace(-1, 1, 300).reshape(3, 100)
assert abs(kofn.soft_topk(x, 7).sum(-1) - 7).max() < 1e-12
kofn.hard_topk(x, 3), kofn.topk(x, 3), kofn.KSubset(x, 3).marginals()
kofn.soft_knapsack(x, np.ones(100), 3), kofn.segment_softmax(x[0], segment_ids=np.arange(100) // 40)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"numba", "llvmlite", "scipy"}))
"""
    assert answered(program) == "[]\n"


def test_it_has_every_function_for_each_of_its_levels():
    loaded = library.found()
    for level in library._levels(loaded):
        for code in every.functions(SERVED, (4, 8)):
            assert hasattr(loaded, library.name_of(code.symbol, level)), code.symbol


def test_c_knows_the_words_of_jobs_by_the_numbers_of_python():
    defined = dict(re.findall(r"#define (\w+) (-?\d+)", header.header()))
    handler = (sources.KERNELS / "cpu" / "xla" / "handler.c").read_text(encoding="utf-8")
    used = set(re.findall(rf"\b(?:{'|'.join(header.LAYOUTS)})_\w+", handler)) - {"CALL_"}
    assert used <= set(defined), used - set(defined)
    assert int(defined["CALL_TABLE"]) == call.TABLE
    table = (ctypes.c_int64 * call.TABLE).in_dll(library.found(), call.SYMBOL)
    assert len(table) == call.TABLE


@pytest.fixture
def alone(monkeypatch):
    """This process as if nothing were known of the library."""
    known = library.found, library._loaded, library._level

    def forget():
        for each in known:
            each.cache_clear()

    forget()
    yield monkeypatch
    forget()


def test_a_library_of_other_sources_is_refused(alone):
    assert not library.is_stale()
    alone.setattr(library, "sources", lambda *_: "other")
    assert library.is_stale()
    assert library.found() is None
    assert library.address(launch.FORWARD.symbol) == 0


def test_of_other_sources_it_gives_functions_that_have_their_digest(alone):
    digest = now.digest(launch.FORWARD)
    alone.setattr(library, "sources", lambda *_: "other")
    assert library.kept(launch.FORWARD.symbol, digest) != 0
    assert native._compiled(launch.FORWARD) == library.kept(launch.FORWARD.symbol, digest)
    for other in ("other", "", now.digest(launch.AFTER)):
        assert library.kept(launch.FORWARD.symbol, other) == 0
    assert library.kept("kofn_none", digest) == 0
    assert header.found() is library._loaded()
    alone.setattr(header, "header", lambda: "#define ROWS_N 1\n")
    assert header.found() is None


@pytest.mark.parametrize("share", [0, 1e-6, 1e-4, 0.01, 0.5, 0.9, 1 - 1e-6])
def test_a_library_that_was_cut_is_not_loaded(alone, tmp_path, share):
    """A copy that was interrupted; whoever touches what is not there gets SIGBUS."""
    whole_file = library.FILE.read_bytes()
    cut = tmp_path / library.FILE.name
    cut.write_bytes(whole_file[: int(share * len(whole_file))])
    alone.setattr(library, "FILE", cut)
    assert library.found() is None
    assert f"{cut} is cut: it has {cut.stat().st_size} of " in library.why_none()
    cut.write_bytes(whole_file)
    library._loaded.cache_clear()
    assert library._loaded() is not None


def _elf():
    return library.FILE.read_bytes()


def _mach_o():
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    code = llvm.parse_assembly("define i64 @f() {\n  ret i64 1\n}\n@x = global [999 x i64] undef")
    machine = llvm.Target.from_triple("x86_64-apple-macosx12").create_target_machine()
    return machine.emit_object(code)


def _pe():
    """A header of a signature at byte 64, no options, and two sections of 512 bytes."""
    head = bytearray(1536)
    head[:2], head[60:64], head[64:68] = b"MZ", (64).to_bytes(4, "little"), b"PE\0\0"
    head[70:72] = (2).to_bytes(2, "little")
    for i, place in enumerate((88, 128)):
        head[place + 16 : place + 20] = (512).to_bytes(4, "little")
        head[place + 20 : place + 24] = (512 * (i + 1)).to_bytes(4, "little")
    return bytes(head)


@pytest.mark.parametrize("made", [_elf, _mach_o, _pe])
def test_headers_of_every_system_tell_the_size(tmp_path, made):
    if made is _elf and sys.platform != "linux":
        pytest.skip("the library has another format here")
    data, path = made(), tmp_path / "library"
    path.write_bytes(data)
    whole.check(path)
    for size in (0, 1, 3, 4, 5, 30, 70, 100, 150, len(data) // 3):
        path.write_bytes(data[:size])
        with pytest.raises(OSError, match=f"is cut: it has {size} of "):
            whole.check(path)


def test_an_application_that_is_packed_without_sources_has_a_library(alone, tmp_path):
    alone.setattr(sources, "KERNELS", tmp_path)
    assert library.found() is not None


def test_every_file_that_makes_a_library_counts(tmp_path, monkeypatch):
    """A change of any makes the library one of other sources."""
    here = sources.KERNELS / "cpu"
    assert sources.counts(here / "xla" / "handler.c", b"")
    assert sources.counts(here / "rows" / "layout.py", b"")
    assert sources.counts(here / "rows" / "loops.py", (here / "rows" / "loops.py").read_bytes())
    assert not sources.counts(here / "rows" / "launch.py", b"import os")
    before = library.made_of()
    sources.sources.cache_clear()
    read = type(here).read_bytes

    def changed(file):
        return read(file) + (b" " if file.name == "handler.c" else b"")

    monkeypatch.setattr(type(here), "read_bytes", changed)
    assert library.made_of() != before
    monkeypatch.undo()
    sources.sources.cache_clear()
    assert library.made_of() == before


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_without_a_library_functions_are_compiled_or_array_code_serves(alone, tmp_path, content):
    path = tmp_path / "kofn.so"
    if content is not None:
        path.write_bytes(content)
    alone.setattr(library, "FILE", path)
    assert library.found() is None
    assert library.served() is None
    assert native._compiled(launch.pass_code("pass_loops", "total", 0, 4)) != 0


REASONS = {
    "none": "no library of kernels for this platform",
    "damaged": "cannot be loaded (",
    "another": "cannot be loaded (",
    "stale": "made of other sources",
    "level": "not for KOFN_CPU=x86-64-v9",
}


@pytest.mark.parametrize("name", REASONS)
def test_it_is_known_why_there_is_no_library(name, alone, tmp_path):
    path = tmp_path / "kofn.so"
    if name == "damaged":
        path.write_bytes(b"no library")
    if name == "another":  # of a program that has nothing of kofn's
        import _ctypes

        path.symlink_to(_ctypes.__file__)
    if name in ("none", "damaged", "another"):
        alone.setattr(library, "FILE", path)
    if name == "stale":
        alone.setattr(library, "sources", lambda *_: "other")
    if name == "level":
        alone.setattr(library, "_level", lambda *_: "v9")
        alone.setenv("KOFN_CPU", "x86-64-v9")
    assert library.found() is None
    assert REASONS[name] in library.why_none()


def test_levels_are_those_that_llvm_finds():
    assert library.served() == target.served()


@pytest.mark.parametrize("name", library.served() or ())
def test_answers_at_each_level(name):
    """Where the library has it; elsewhere functions are compiled."""
    program = """
import numpy as np, kofn, sys
from kofn.kernels.cpu.runtime import library
x = np.random.default_rng(0).normal(size=(7, 200))
print(abs(kofn.soft_topk(x, 9.5).sum(-1) - 9.5).max() < 1e-12, library.found() is None)
"""
    has = library.LEVELS[name] in library._levels(library._loaded())
    if not has:
        pytest.skip("not in this library: python -m wheels.library makes all levels")
    assert answered(program, KOFN_CPU=name) == "True False\n"


def test_a_library_that_answers_wrongly_is_not_used(monkeypatch):
    check._holds.cache_clear()
    weights = launch.weights

    def wrong(*given):
        p, *rest = weights(*given)
        p[0, 0] += 1e-3
        return p, *rest

    monkeypatch.setattr(launch, "weights", wrong)
    with pytest.warns(RuntimeWarning, match="gives wrong answers on this machine"):
        assert not check.holds()
    monkeypatch.undo()
    check._holds.cache_clear()
    assert check.holds()


def test_nor_is_one_that_does_not_answer(monkeypatch):
    check._holds.cache_clear()

    def lacking(*given):
        raise AttributeError("function 'kofn_rows' not found")

    monkeypatch.setattr(launch, "weights", lacking)
    with pytest.warns(RuntimeWarning, match="does not work on this machine.*'kofn_rows' not found"):
        assert not check.holds()
    monkeypatch.undo()
    check._holds.cache_clear()
    assert check.holds()


@pytest.mark.parametrize("fault", ["0", "1 / 0"])
def test_then_array_code_serves(fault):
    program = (
        f"FAULT = {fault!r}"
        + """
import warnings
import numpy as np
import kofn
from kofn import kernels
from kofn.kernels.cpu import check
check._right = lambda *_: bool(eval(FAULT))
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    p = kofn.soft_topk(np.arange(9.0), 2)
    kofn.hard_topk(np.arange(9.0), 2)
said = "wrong answers" if FAULT == "0" else "ZeroDivisionError"
assert len(heard) == 1 and said in str(heard[0].message), heard
assert kernels.found("rows", p, "numpy") is None
print(abs(p.sum() - 2) < 1e-12)
"""
    )
    assert answered(program) == "True\n"


def test_threads_that_begin_at_once_hear_one_warning():
    program = """
import threading, time, warnings
import numpy as np
import kofn
from kofn.kernels.cpu import check
def wrong(*_):
    time.sleep(0.02)
    return False
check._right = wrong
together = threading.Barrier(8)
def call():
    together.wait()
    kofn.soft_topk(np.arange(9.0), 2)
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    threads = [threading.Thread(target=call) for _ in range(8)]
    for each in threads: each.start()
    for each in threads: each.join()
print(len(heard))
"""
    assert answered(program) == "1\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_wait_for_a_thread_of_its_parent():
    program = """
import os, signal, threading, time
from kofn.kernels.cpu import check
held = threading.Event()
def hold():
    with check._lock:
        held.set()
        time.sleep(30)
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(0 if check.holds() else 1)
print(os.waitpid(child, 0)[1], flush=True)
os._exit(0)
"""
    assert (
        answered(
            program.replace(
                "import os", "import warnings; warnings.simplefilter('ignore')\nimport os", 1
            )
        )
        == "0\n"
    )


def test_the_check_meets_no_special_number():
    check._holds.cache_clear()
    before = np.seterr(all="raise")
    try:
        assert check.holds()
    finally:
        np.seterr(**before)


def test_the_handler_says_the_version_of_the_xla_that_asks_it():
    """XLA refuses a newer one than its own, and calls with other questions are calls."""

    class Version(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("next", ctypes.c_void_p)]
        _fields_ += [("major", ctypes.c_int), ("minor", ctypes.c_int)]

    class Metadata(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("version", Version), ("traits", ctypes.c_uint32)]

    class Question(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("next", ctypes.c_void_p)]
        _fields_ += [("metadata", ctypes.POINTER(Metadata))]

    class Api(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("next", ctypes.c_void_p), ("version", Version)]

    class Frame(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("question", ctypes.POINTER(Question))]
        _fields_ += [("api", ctypes.POINTER(Api)), ("more", 64 * ctypes.c_int64)]

    def answer(minor):
        metadata = Metadata(version=Version(minor=-1))
        question = Question(kind=1, metadata=ctypes.pointer(metadata))
        frame = Frame(question=ctypes.pointer(question))
        if minor is not None:
            frame.api = ctypes.pointer(Api(version=Version(minor=minor)))
        serve = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        address = ctypes.cast(library.found().kofn_xla_serve, ctypes.c_void_p).value
        assert serve(address)(ctypes.addressof(frame)) is None
        return metadata.version.minor

    assert [answer(minor) for minor in (None, 0, 1, 2)] == [1, 1, 1, 2]
    assert 2 <= answer(1000) < 1000
