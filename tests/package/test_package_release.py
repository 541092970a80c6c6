"""What is published: the files say the same as pyproject.toml, and the wheel works where it lands.

Tests marked `dist` build the archives and install the wheel in fresh environments, with packages
from the index: `make test-dist` runs them. DIST_PYTHON names another interpreter for them, and
TORCH_INDEX an index to take PyTorch from.
"""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import kofn
from places import ROOT
from wheels.hook import NEEDED, OF_HANDLER
from wheels.platforms import COMPILE

RELEASE = ROOT / "tests" / "release"
TYPED = ROOT / "tests" / "typed"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = ROOT / ".github" / "workflows"
MUSL = Path("/lib/ld-musl-x86_64.so.1")
OWN = Path(__file__).read_text(encoding="utf-8")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pinned(name: str) -> dict[str, Version]:
    lines = (line.split("#")[0].strip() for line in text(name).splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {package.lower().replace("_", "-"): Version(number) for package, number in pairs}


def floors() -> dict[str, Version]:
    """The lowest version that pyproject.toml allows of what kofn and its main extras need."""
    extras = PROJECT["optional-dependencies"]
    listed = [*PROJECT["dependencies"], *extras["torch"], *extras["jax"], *extras["cli"]]
    found = {}
    for requirement in map(Requirement, listed):
        for each in requirement.specifier:
            if each.operator == ">=":
                found[requirement.name] = Version(each.version)
    return found


def test_the_lowest_versions_that_are_tested_are_those_that_are_allowed():
    lowest = pinned("constraints-lowest.txt")
    assert {name: lowest.get(name) for name in floors()} == floors()


def conda(*requirements: str) -> list[str]:
    """Requirements as conda writes them: its own name of PyTorch, a space before the versions."""
    found = (re.fullmatch(r"([a-z-]+)(.*)", each.split("#")[0]) for each in requirements)
    pairs = ((match[1].replace("torch", "pytorch"), match[2]) for match in found)
    return [f"{name} {versions}" for name, versions in pairs]


def test_the_recipe_of_conda_says_what_pyproject_says():
    recipe = yaml.safe_load(text("wheels/conda/recipe.yaml"))
    build_system = tomllib.loads(text("pyproject.toml"))["build-system"]["requires"]
    context, needs = recipe["context"], recipe["requirements"]
    assert context["version"] == kofn.__version__
    python = conda(f"python{PROJECT['requires-python']}")
    assert needs["run"] == [*python, *conda(*PROJECT["dependencies"])]
    *always, compiled, called = needs["host"]
    assert always == ["python", "pip", *conda(*build_system)]
    assert compiled == {"if": 'library != "none"', "then": conda(*NEEDED)}
    assert called["then"] == conda(OF_HANDLER)
    assert called["if"] == f'{compiled["if"]} and handler == "{context["handler"]}"'
    extras = PROJECT["optional-dependencies"]
    assert needs["run_constraints"] == conda(*extras["jit"], *extras["torch"], *extras["jax"])
    named = {*re.findall(r'"(\w+-\w+)"', context["library"])}
    assert named <= {*COMPILE}
    assert named == {*COMPILE} - {"windows-x86_64"}  # the recipe says why
    about = recipe["about"]
    assert (about["summary"], about["license"]) == (PROJECT["description"], PROJECT["license"])
    assert [about["license_file"]] == PROJECT["license-files"]


def test_what_is_installed_by_name_is_pinned():
    """By make, which takes other packages from the extras, and by the tests below."""
    named = re.findall(r"^\t.*(?:\$\(PIP\)|\$\(LOWEST\)) (.*)$", text("Makefile"), re.M)
    words = {word for line in named for word in line.split() if re.fullmatch(r"[a-z]\w+", word)}
    words.update(re.findall(r'"(\w+)"', "".join(re.findall(r"install\(([^)]*)\)", OWN))))
    assert {"hatchling", "hypothesis", "playwright", "basedpyright", "mypy"} <= words
    assert words - set(pinned("constraints.txt")) == set()


def test_no_compiler_and_no_bound_on_numpy_comes_with_kofn():
    needed = {each.name: str(each.specifier) for each in map(Requirement, PROJECT["dependencies"])}
    assert needed.keys() == {"numpy"}
    assert "<" not in needed["numpy"]


def test_the_version_is_written_in_one_place():
    assert "version" in PROJECT["dynamic"]
    assert re.search(r"^version:", text("CITATION.cff"), re.M) is None
    assert kofn.__version__ == str(Version(kofn.__version__))
    assert "## [Unreleased]" in text("CHANGELOG.md")


def test_workflows_try_every_version_that_is_announced():
    announced = {
        each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)
    }
    tested = set(re.findall(r'"(3\.\d+)"', (WORKFLOWS / "test.yml").read_text(encoding="utf-8")))
    assert announced == tested
    assert min(announced, key=Version) == PROJECT["requires-python"].removeprefix(">=")


def test_only_the_job_that_publishes_may_ask_for_a_token():
    release = (WORKFLOWS / "release.yml").read_text(encoding="utf-8")
    assert release.count("id-token: write") == 1
    assert release.index("  publish:") < release.index("id-token: write")
    assert "password" not in release


def test_workflows_name_actions_by_commit_and_keep_no_credentials():
    for path in WORKFLOWS.glob("*.yml"):
        workflow = path.read_text(encoding="utf-8")
        for action in re.findall(r"uses: (.*)", workflow):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), path
        assert workflow.count("actions/checkout@") == workflow.count("persist-credentials: false")
        assert workflow.count("\npermissions:\n  contents: read\n") == 1


def run(*command: object, **more: object) -> str:
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


class Environment:
    """A fresh virtual environment, outside of the checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run(os.environ.get("DIST_PYTHON", sys.executable), "-m", "venv", folder / "venv")
        self.python = folder / "venv" / "bin" / "python"

    def install(self, *what: object) -> None:
        run(
            *(self.python, "-m", "pip", "install", "--quiet", "--no-compile"),
            *("--disable-pip-version-check", "-c", ROOT / "constraints.txt"),
            *what,
        )

    def install_torch(self) -> None:
        index = os.environ.get("TORCH_INDEX")
        self.install(*(("--no-deps", "--index-url", index) if index else ()), "torch")

    def bytes(self, *but: str) -> int:
        """Return how much is installed, without files of these names."""
        files = (file for file in (self.folder / "venv" / "lib").rglob("*") if file.is_file())
        counted = (file for file in files if not any(map(file.match, but)))
        return sum(file.stat().st_size for file in counted)

    def smoke(self, *names: str) -> None:
        outside = {name: v for name, v in os.environ.items() if not name.startswith("PYTHON")}
        run(
            *(self.python, "-W", "error", RELEASE / "smoke.py", *names),
            cwd=self.folder,
            env=outside,
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the archives, built from the checkout as `make dist` does."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture
def fresh(tmp_path):
    """A fresh environment, removed after the test."""
    import shutil

    yield Environment(tmp_path)
    shutil.rmtree(tmp_path / "venv")


@pytest.mark.dist
def test_the_archives_hold_what_they_should(built):
    run(sys.executable, RELEASE / "check_files.py", built)


@pytest.mark.dist
def test_the_source_archive_builds_the_same_wheel_and_passes_its_tests(built, wheel, tmp_path):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=source)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()
    tests = [
        "tests/links/test_links.py",
        "tests/docs/test_readme.py",
        "tests/package/test_layers.py",
    ]
    run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests),
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source / "src")},
    )


@pytest.mark.dist
def test_the_wheel_works_with_numpy_alone_and_is_small(wheel, fresh):
    fresh.install("numpy")
    before = fresh.bytes()
    fresh.install(wheel)
    fresh.smoke("numpy", "-numba", "-llvmlite", "-scipy", "-torch", "-jax", "-typer")
    added = fresh.bytes("*.pyc") - before
    assert added < 8e6, f"{added / 1e6:.1f} MB beside NumPy"


@pytest.mark.dist
def test_a_wheel_without_a_library_says_so(tmp_path, fresh):
    environment = os.environ | {"KOFN_PLATFORM": "none"}
    command = sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "pure"
    run(*command, cwd=ROOT, env=environment)
    (wheel,) = (tmp_path / "pure").glob("*-py3-none-any.whl")
    fresh.install(wheel)
    fresh.smoke("numpy", "-numba", "-llvmlite", "-scipy", "-torch", "-jax", "-kernels")


@pytest.mark.dist
@pytest.mark.skipif(
    not (MUSL.exists() and find_spec("ziglang")),
    reason="needs musl (Debian's package musl) and ziglang, which `make wheels` installs",
)
def test_the_library_for_musl_runs_on_it(tmp_path):
    """By a program in C, because there is no Python for musl here."""
    library, program = tmp_path / "kofn.so", tmp_path / "loaded"
    run(sys.executable, "-m", "wheels.library", "musl-x86_64", "--out", library, cwd=ROOT)
    zig = sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl", "-dynamic"
    run(*zig, "-O1", "-o", program, RELEASE / "loaded.c")
    assert run(program, library).startswith("levels v2 v3 v4; tried ")


@pytest.mark.dist
def test_the_wheel_works_with_jax(wheel, fresh):
    fresh.install(f"kofn[jax] @ {wheel.as_uri()}")
    fresh.smoke("numpy", "-numba", "jax", "-torch")


@pytest.mark.dist
def test_the_wheel_works_with_torch_and_type_checkers_know_it(wheel, fresh):
    fresh.install_torch()
    fresh.install(f"kofn[torch] @ {wheel.as_uri()}")
    fresh.smoke("numpy", "-numba", "torch", "-jax", "-typer")
    fresh.install("mypy", "basedpyright")
    check_with_mypy(fresh)
    check_with_pyright(fresh)
    fresh.install(f"kofn[cli,torch] @ {wheel.as_uri()}")
    fresh.smoke("numpy", "-numba", "torch", "-jax", "typer")


@pytest.mark.dist
def test_the_command_works_without_torch(wheel, fresh):
    fresh.install(f"kofn[cli] @ {wheel.as_uri()}")
    fresh.smoke("numpy", "-numba", "-torch", "-jax", "typer")


def wrong_lines(path: Path) -> set[int]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def copied(name: str, folder: Path) -> Path:
    """A user's file outside of the checkout, whose settings must not count."""
    path = folder / name
    path.write_bytes((TYPED / name).read_bytes())
    return path


def check_with_mypy(environment: Environment) -> None:
    mypy = [environment.python, "-m", "mypy", "--strict"]
    run(*mypy, copied("strict.py", environment.folder), cwd=environment.folder)
    mistakes = copied("mistakes.py", environment.folder)
    done = subprocess.run([*mypy, mistakes], capture_output=True, text=True, cwd=environment.folder)
    refused = re.findall(r"mistakes\.py:(\d+): error", done.stdout)
    assert {int(number) for number in refused} == wrong_lines(mistakes), done.stdout


def check_with_pyright(environment: Environment) -> None:
    import json

    settings = {"typeCheckingMode": "strict", "venvPath": ".", "venv": "venv"}
    (environment.folder / "pyrightconfig.json").write_text(json.dumps(settings))
    paths = [copied(name, environment.folder) for name in ("strict.py", "mistakes.py")]
    done = subprocess.run(
        [environment.python.with_name("basedpyright"), "--outputjson", *paths],
        capture_output=True,
        text=True,
        cwd=environment.folder,
    )
    found = [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    ]
    wrong = {("mistakes.py", number) for number in wrong_lines(paths[1])}
    assert set(found) == wrong, done.stdout
