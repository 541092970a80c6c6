"""How wheels are made: what compiles a library, what it exports, and what is published of it."""

import ast
import re
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import SimpleNamespace

import pytest

from kofn.kernels.cpu.compiler import now
from kofn.kernels.cpu.rows import launch
from kofn.kernels.cpu.runtime import library as served
from places import ROOT, TESTS

build = pytest.importorskip("wheels.library")  # which needs llvmlite
from wheels import platforms  # noqa: E402

RELEASE = ROOT / "tests" / "release"
SMALL = launch.pass_code("pass_loops", "total", 0, 4)  # compiled in a blink


def script(name, monkeypatch):
    monkeypatch.syspath_prepend(RELEASE)
    spec = spec_from_file_location(f"release_{name}", RELEASE / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- what a library exports ---


@pytest.mark.skipif(served.found() is None, reason="a system that has no library of kernels")
def test_the_names_that_a_library_exports_are_read_from_the_file(monkeypatch):
    exported = script("exported", monkeypatch)
    found = exported.names(served.FILE.read_bytes())
    level = served._level(served.found())
    assert {"kofn_xla_serve", served.name_of(launch.FORWARD.symbol, level)} <= found
    with pytest.raises(ValueError, match="must be of ELF, Mach-O or PE"):
        exported.names(b"#!/bin/sh")


def test_a_library_without_its_kernels_is_not_published(monkeypatch):
    """As the first one for Windows: it exported what C had marked, and no kernel."""
    check = script("check_files", monkeypatch)
    whole = check.kernels("windows-x86_64")
    monkeypatch.setattr(check.exported, "names", lambda data: whole)
    check.check_library(b"", "windows-x86_64")
    lacking = {name for name in whole if not name.endswith("_v4")}
    monkeypatch.setattr(check.exported, "names", lambda data: lacking)
    with pytest.raises(AssertionError, match=r"missing for windows-x86_64, such as \['kofn_"):
        check.check_library(b"", "windows-x86_64")


def test_the_platform_of_a_wheel_is_known_by_its_tags(monkeypatch):
    check = script("check_files", monkeypatch)
    for name, each in platforms.PLATFORMS.items():
        assert check.platform_of(set(each.tags.split("."))) == name
    assert check.platform_of({"linux_x86_64"}) == platforms.own()


@pytest.mark.parametrize(("name", "marked"), [("windows-x86_64", True), ("linux-x86_64", False)])
def test_objects_for_windows_say_what_is_exported(name, marked, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "OBJECTS", tmp_path)
    (tmp_path / platforms.PLATFORMS[name].triple).mkdir()
    made = build._object(name, "v3", SMALL).read_bytes()
    assert (f"-export:{SMALL.symbol}_v3".encode() in made) == marked


@pytest.mark.dist
@pytest.mark.skipif(find_spec("ziglang") is None, reason="needs ziglang")
@pytest.mark.parametrize("name", ["linux-aarch64", "macos-arm64", "windows-x86_64"])
def test_exports_of_each_format(name, monkeypatch, tmp_path):
    (tmp_path / "some.c").write_text(
        "#ifdef _WIN32\n__declspec(dllexport)\n#endif\nint seen(void) { return 1; }\n"
        "static int own(void) { return 2; }\nint used(void) { return own(); }\n"
    )
    made = tmp_path / "some"
    command = *build._compiler(name, platforms.PLATFORMS[name].target), "-shared", "-s"
    subprocess.run([*command, "-o", made, tmp_path / "some.c"], check=True)
    found = script("exported", monkeypatch).names(made.read_bytes())
    assert "seen" in found
    assert "own" not in found


def test_a_library_for_macos_has_no_path_of_the_machine_where_it_is_made(monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(build, "_run", commands.append)
    platform = platforms.PLATFORMS["macos-arm64"]
    monkeypatch.setattr(build, "_compiler", lambda *_: ["cc"])
    build._link("macos-arm64", platform, [""], tmp_path, [], tmp_path / "made" / "kofn.dylib")
    assert "-Wl,-install_name,@rpath/kofn.dylib" in commands[0]


# --- the compiler ---


@pytest.mark.parametrize(
    ("named", "command"),
    [(f"{sys.executable} -m64", [sys.executable, "-m64"]), (sys.executable, [sys.executable])],
)
def test_a_compiler_may_have_options(named, command, monkeypatch):
    monkeypatch.setenv("CC", named)
    monkeypatch.setattr(build, "is_portable", lambda: False)
    assert build._compiler(platforms.own(), "") == command


def test_without_a_compiler_zig_is_asked_for(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    monkeypatch.setattr(build, "is_portable", lambda: False)
    with pytest.raises(RuntimeError, match="pip install ziglang"):
        build._compiler(platforms.own(), "")


def test_a_library_of_another_platform_does_not_take_this_one_s_place(monkeypatch, capsys):
    monkeypatch.setattr(build, "build", lambda *_: pytest.fail("it was made"))
    other = next(name for name in platforms.PLATFORMS if name != platforms.own())
    with pytest.raises(SystemExit):
        build.main([other])
    assert f"--out must name a file for {other}" in capsys.readouterr().err


# --- the hook of hatchling ---


@pytest.fixture
def hook(tmp_path, monkeypatch):
    """The hook of a wheel, and the warnings that it displays."""
    from wheels.hook import Library

    for name in ("KOFN_PLATFORM", "KOFN_LEVELS", "KOFN_HANDLER", "PIP_BUILD_TRACKER"):
        monkeypatch.delenv(name, raising=False)
    heard = []
    app = SimpleNamespace(display_warning=heard.append, display_info=print)
    return Library(str(ROOT), {}, None, None, str(tmp_path / "dist"), "wheel", app), heard


def test_the_first_and_the_last_numba_are_those_that_are_known():
    from wheels.hook import NEEDED

    (_, first), (_, last) = now.NUMBA
    assert f"numba>=0.{first},<0.{last + 1}" in NEEDED


@pytest.mark.parametrize(
    ("name", "version", "compiler", "asked"),
    [
        ("linux-x86_64", (3, 14), "cc", {"jaxlib", "numba"}),
        ("macos-arm64", (3, 11), "cc", {"jaxlib", "numba"}),
        ("windows-x86_64", (3, 13), None, {"jaxlib", "numba", "ziglang"}),
        ("linux-x86_64", (3, 15), "cc", set()),
        ("musl-x86_64", (3, 13), "cc", set()),
        ("macos-x86_64", (3, 13), "cc", set()),
        (None, (3, 13), "cc", set()),
    ],
)
def test_pip_gets_what_compiles_where_there_are_wheels_of_it(
    name, version, compiler, asked, hook, monkeypatch
):
    """Elsewhere it would try to compile LLVM, and fail."""
    monkeypatch.setattr(platforms, "own", lambda: name)
    monkeypatch.setattr(platforms.sys, "version_info", version)
    monkeypatch.setattr(platforms, "c_compiler", lambda: compiler)
    needed = [re.split(r"\W", each)[0] for each in hook[0].dependencies()]
    monkeypatch.setenv("KOFN_HANDLER", "none")
    without = [re.split(r"\W", each)[0] for each in hook[0].dependencies()]
    monkeypatch.undo()
    assert {*needed} == asked
    assert {*without} == asked - {"jaxlib"}


def test_a_library_that_cannot_be_made_does_not_end_an_installation(hook, monkeypatch):
    def fail(*_, **options):
        raise OSError("no space left")

    monkeypatch.setattr(build, "build", fail)
    made, heard = hook
    data = {"force_include": {}, "pure_python": True}
    made.initialize("standard", data)
    assert data == {"force_include": {}, "pure_python": True}
    assert len(heard) == 1
    assert "no space left" in heard[0]
    monkeypatch.setenv("KOFN_PLATFORM", platforms.own())
    with pytest.raises(OSError, match="no space left"):
        made.initialize("standard", data)


def test_a_library_is_not_made_in_the_folder_that_is_published(hook, monkeypatch):
    places = []
    monkeypatch.setattr(build, "build", lambda name, out, *_, **options: places.append(out))
    data = {"force_include": {}}
    hook[0].initialize("standard", data)
    assert places == [
        ROOT
        / "build"
        / "libraries"
        / platforms.own()
        / platforms.PLATFORMS[platforms.own()].library
    ]
    assert list(data["force_include"]) == [str(places[0])]


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ({}, False),
        ({"PIP_BUILD_TRACKER": "/tmp"}, True),
        ({"PIP_BUILD_TRACKER": "/tmp", "KOFN_LEVELS": "all"}, False),
        ({"PIP_BUILD_TRACKER": "/tmp", "KOFN_PLATFORM": platforms.own() or ""}, False),
        ({"KOFN_LEVELS": "own"}, True),
    ],
)
def test_pip_compiles_for_this_machine_alone(given, own, hook, monkeypatch, capsys):
    """And says how far it is. No index takes such a wheel, for its name says this system."""
    asked = []

    def fake(name, out, levels, *, tell, handler):
        assert handler
        asked.append(levels)
        tell("kofn: 3 of 400 functions are compiled")

    monkeypatch.setattr(build, "build", fake)
    monkeypatch.setattr(build, "is_portable", lambda: True)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    platform, data = platforms.PLATFORMS[platforms.own()], {"force_include": {}}
    hook[0].initialize("standard", data)
    assert asked == [build.own_levels(platforms.own()) if own else None]
    assert data["tag"] == f"py3-none-{platform.local_tag if own else platform.tags}"
    assert "3 of 400" in capsys.readouterr().out


def test_levels_are_all_or_own(hook, monkeypatch):
    monkeypatch.setenv("KOFN_LEVELS", "v3")
    with pytest.raises(ValueError, match="KOFN_LEVELS must be 'all' or 'own', got 'v3'"):
        hook[0].initialize("standard", {"force_include": {}})


def test_the_handler_is_xla_s_or_none(hook, monkeypatch):
    asked = []
    monkeypatch.setattr(build, "build", lambda *_, handler, **options: asked.append(handler))
    for chosen in ("", "xla", "none"):
        monkeypatch.setenv("KOFN_HANDLER", chosen)
        hook[0].initialize("standard", {"force_include": {}})
    assert asked == [True, True, False]
    monkeypatch.setenv("KOFN_HANDLER", "jax")
    with pytest.raises(ValueError, match="KOFN_HANDLER must be 'xla' or 'none', got 'jax'"):
        hook[0].dependencies()


@pytest.mark.full
def test_a_library_without_a_handler_serves_all_but_jax(tmp_path):
    """And is built where there is no jaxlib."""
    made = tmp_path / served.FILE.name
    code = f"""
import sys
from pathlib import Path
sys.modules["jaxlib"] = None
from wheels import library
library.main(["--own", "--no-handler", "--out", {str(made)!r}])
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    code = f"""
import warnings
from pathlib import Path
from kofn.kernels.cpu.runtime import library
library.FILE = Path({str(made)!r})
import jax, numpy as np, kofn
x = np.linspace(0, 1, 9, dtype=np.float32)
expected = kofn.soft_topk(x, 2)
assert library.found() is not None
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    found = jax.jit(lambda x: kofn.soft_topk(x, 2))(x)
np.testing.assert_allclose(found, expected, atol=1e-6)
(warning,) = heard
assert "built without the handler that JAX calls" in str(warning.message), warning
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_archives_are_published(tmp_path, monkeypatch):
    check = script("check_files", monkeypatch)
    for name in ("kofn-1-py3-none-any.whl", "kofn-1.tar.gz"):
        (tmp_path / name).touch()
    monkeypatch.setattr(check, "check_wheel", lambda path: None)
    monkeypatch.setattr(check, "check_sdist", lambda path: None)
    check.main(tmp_path)
    (tmp_path / "libraries").mkdir()
    with pytest.raises(AssertionError, match=r"archives only, has \['libraries'\]"):
        check.main(tmp_path)


# --- the workflow ---


def needed_by(files):
    """The packages that tests import at their top, and the tests' own modules do."""
    found, left = set(), [*files]
    while left:
        tree = ast.parse(left.pop().read_text(encoding="utf-8"))
        for node in tree.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in {each.partition(".")[0] for each in names} - found:
                found.add(name)
                left += sources(name)
    return {name for name in found if not sources(name)}


def sources(name):
    """The files of a module or package of the tests."""
    return [*TESTS.rglob(f"{name}.py"), *TESTS.glob(f"{name}/*.py")]


def test_what_tests_on_native_machines_import_is_installed_there():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    native = text[text.index("  native:") : text.index("  musl:")]
    tests = [ROOT / name for name in re.findall(r"tests/\w+/test_\w+\.py", native)]
    assert len(tests) == 3
    needed = needed_by([*tests, TESTS / "conftest.py"]) - sys.stdlib_module_names
    installed = set(re.findall(r"[\w-]+", " ".join(re.findall(r"pip install (.*)", native))))
    assert needed - {"kofn", "_pytest"} <= {name.replace("-", "_") for name in installed}


def test_nothing_is_published_before_every_wheel_was_tried():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "needs: [build, native, musl]" in text[text.index("  publish:") :]
    assert "python -m wheels.shipped" in text[: text.index("  native:")]
    assert '--index-url "$TORCH_INDEX"' in text


def test_a_translation_that_is_another_one_ends_a_release(monkeypatch):
    from wheels import shipped as compared

    code = SMALL
    monkeypatch.setattr(compared.every, "functions", lambda *_: [code])
    compared.main([code.symbol])
    text = compared.shipped.find(code)
    monkeypatch.setattr(compared.now, "by_numba", lambda _: text.replace("fadd", "fsub"))
    with pytest.raises(SystemExit, match=f"1 functions are not as Numba has them: {code.symbol}"):
        compared.main([code.symbol])


def test_no_address_of_the_translating_process_is_read(monkeypatch, tmp_path):
    """Where a function is given to another, Numba writes one: it has to fall away."""
    from kofn.kernels.cpu.choice import launch as choice
    from wheels import shipped as compared

    monkeypatch.setattr(build, "OBJECTS", tmp_path)
    (tmp_path / platforms.PLATFORMS["linux-x86_64"].triple).mkdir()
    (code,) = (each for each in choice.codes(4) if each.symbol.endswith("ranked_ranked_0_float32"))
    text = now.translated(code)
    assert "@numba.dynamic.globals" in text
    assert build._object("linux-x86_64", "v2", code).exists()
    other = re.sub(r"inttoptr \(i64 \d+", "inttoptr (i64 1234", text)
    assert other != text
    assert compared.renamed(other) == compared.renamed(text)
    reads = """
@numba.dynamic.globals.7f = internal global ptr inttoptr (i64 1234 to ptr)
define i64 @{0}() {{
  %a = load volatile ptr, ptr @numba.dynamic.globals.7f
  %b = ptrtoint ptr %a to i64
  ret i64 %b
}}"""
    monkeypatch.setattr(now, "translated", lambda code: reads.format(code.symbol))
    with pytest.raises(RuntimeError, match="must not read objects of the process"):
        build._object("linux-x86_64", "v2", SMALL)
