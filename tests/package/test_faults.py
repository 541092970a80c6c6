"""The table of faults that tests have to catch, and the script that plants them."""

import ast
import subprocess
import sys

import pytest

from places import ROOT, TESTS

HERE = TESTS / "faults"


@pytest.fixture(autouse=True)
def room(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def test_each_fault_has_its_place_and_its_tests():
    """Where a line has moved or changed, write the fault anew as it would look there today."""
    from table import FAULTS

    assert len(FAULTS) >= 30
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        text = (ROOT / "src/kofn" / fault.file).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, f"{fault.name}: {fault.old!r} in {fault.file}"
        ast.parse(text.replace(fault.old, fault.new))  # a fault is code that runs
        assert 1 <= len(fault.tests) <= 3, fault.name
        assert all(len([*TESTS.rglob(name)]) == 1 for name in fault.tests), fault.name


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A small tree with a function, and a test of half of what it does."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # quicker
    files = {
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "src/kofn/__init__.py": "",
        "src/kofn/one.py": "def size(x):\n    return x if x > 0 else -x\n",
        "tests/test_one.py": (
            "from kofn.one import size\n\n\n"
            'def test_size():\n    assert size(2) == 2, "a word"\n\n\n'
            "def test_another():\n    assert size(3) == 3\n"
        ),
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_what_is_caught_missed_and_out_of_place_is_told(tree):
    from table import Fault
    from trial import tried

    def outcome(*faults):
        lines = []
        code = tried(
            [Fault(n, "one.py", *texts, tests) for n, *texts, tests in faults], tree, lines.append
        )
        return code, [line.rpartition(",")[0] or line for line in lines]

    tests = ("test_one.py",)
    caught = ("a sign", "return x if", "return -x if", tests)
    missed = ("another sign", "else -x", "else x", tests)
    assert outcome(caught) == (
        0,
        ["1/1 caught: a sign: by test_one.py::test_size", "1 of 1 caught"],
    )
    code, lines = outcome(
        missed, ("two", "x", "y", tests), ("no code", "return", "return return", tests)
    )
    assert code == 1
    assert lines[0] == "1/3 MISSED: another sign: by none of its tests"
    assert lines[1] == "2/3 MISSED: two: its old text is 4 times in one.py"
    assert "no code: pytest exited with 2" in "".join(lines[2:])
    assert lines[-1] == "0 of 3 caught"
    assert (tree / "src/kofn/one.py").read_text(encoding="utf-8").count("return x if") == 1


def test_a_test_that_fails_without_the_fault_has_caught_nothing(tree):
    from table import Fault
    from trial import tried

    (tree / "tests/test_one.py").write_text("def test_never():\n    assert False\n", "utf-8")
    lines = []
    fault = Fault("a sign", "one.py", "return x if", "return -x if", ("test_one.py",))
    assert tried([fault], tree, lines.append) == 1
    assert "without a fault: test_one.py::test_never" in lines


def test_names_are_listed():
    command = [sys.executable, str(HERE), "--list", "--only", "wrong sign"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(run.stdout.splitlines()) == 3
    assert "the cotangent of k of a threshold has the wrong sign" in run.stdout
