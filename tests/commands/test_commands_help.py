"""Help, completion, JSON and exit statuses of the `kofn` command."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from kofn.commands import app, terminal
from places import ROOT


def run(*arguments):
    return CliRunner().invoke(app.app, [str(argument) for argument in arguments])


def subcommands():
    """Every command with the words that call it."""
    group = typer.main.get_command(app.app)
    for name, command in group.commands.items():
        if not command.hidden:
            yield pytest.param(["kofn", name], command, id=name)


@pytest.mark.parametrize(("words", "command"), list(subcommands()))
def test_every_help_has_examples_that_can_be_typed(words, command):
    page = run(*words[1:], "--help").stdout
    examples = re.findall(r"^ {4}(?! )(.*\bkofn .*)$", page.partition("Examples:")[2], re.M)
    assert examples, page
    options = {name for parameter in command.params for name in parameter.opts}
    for example in examples:
        typed = shlex.split(re.sub(r"^(echo .*?\| |\w+=\S+ )", "", example).partition("|")[0])
        assert typed[: len(words)] == words, example
        assert {word for word in typed if re.match("--?[a-z]", word)} <= options, example


def test_the_help_says_what_to_try_first():
    page = run("--help").stdout
    assert page.index("Commands:") < page.index("Try first:") < page.index("Exit status:")
    assert max(map(len, page.splitlines())) <= 80


def test_the_list_of_commands_says_whole_sentences():
    """The formatter ends a first sentence that is too long with three dots."""
    page = run("--help").stdout
    rows = re.findall(r"^  \w+ {2,}(.*)$", page.partition("Commands:")[2], re.M)
    assert len(rows) >= 5
    assert [row for row in rows if not row.endswith(".") or row.endswith("..")] == []


def test_exit_statuses_are_those_of_the_documentation():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    documented = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.M)}
    used = {terminal.FAILED, terminal.REFUSED, terminal.INTERRUPTED, terminal.TERMINATED}
    assert documented == {0, *used} == {0, 1, 2, 130, 143}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("kofn co", {"compare"}), ("kofn compare --su", {"--support"})],
)
def test_a_shell_completes_commands_and_options(typed, expected):
    given = {
        "_KOFN_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "kofn"], env={**os.environ, **given}, capture_output=True, text=True
    )
    assert (done.returncode, set(done.stdout.split())) == (0, expected), done


def test_json_takes_the_place_of_tables_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savetxt("x.csv", np.array([[2.0, 1.0, 0.5, -1.0]]), delimiter=",")
    printed = run("compare", "x.csv", "-k", 2, "--json")
    assert printed.exit_code == 0, printed.output
    found = json.loads(printed.stdout)
    assert (found["k"], found["n"]) == (2, 4)
    assert os.listdir() == ["x.csv"]
    whole = run("compare", "x.csv", "-k", 2, "--json", "--out", "here")
    assert (tmp_path / "here" / "compare.json").read_text() == whole.stdout
    refused = run("compare", "x.csv", "-k", 2, "--json", "--out", "here")
    assert refused.exit_code == 2
    assert "add --force" in refused.stderr


@pytest.mark.full  # trains, and fits forests
def test_selections_as_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = np.c_[rng.normal(size=(40, 3)), rng.integers(0, 2, 40)]
    np.savetxt("data.csv", table, delimiter=",", header="a,b,c,label", comments="")
    given = ["data.csv", "--target", "label", "-k", 1, "--splits", 1, "--steps", 2]
    printed = run("select", *given, "--json")
    assert printed.exit_code == 0, printed.output
    assert json.loads(printed.stdout)["rows"] == 40
    assert os.listdir() == ["data.csv"]


WITHOUT_RICH = """
    import importlib.util
    import sys

    found = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *more: None if name == "rich" else found(name, *more)
    sys.modules["rich"] = None
"""


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("import runpy; runpy.run_module('kofn', run_name='__main__')", 2, "kofn: "),
        pytest.param(
            *("from kofn.commands.entry import main; main()", 2, "kofn: "),
            marks=pytest.mark.full,
        ),
        ("import kofn.commands.app", 1, "ImportError: kofn.commands.app: "),
        # It imports what it finds, and passes over what raises an ImportError.
        ("import kofn, pkgutil; list(pkgutil.walk_packages(kofn.__path__, 'kofn.'))", 0, None),
        pytest.param("import kofn.__main__", 0, None, marks=pytest.mark.full),
    ],
)
def test_without_its_packages_the_command_says_what_to_install(code, status, says):
    whole = textwrap.dedent(WITHOUT_RICH) + code
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    if says is None:
        assert done.stderr == ""
        return
    advice = f'{says}the command needs rich; install it with: pip install "kofn[cli]"'
    assert done.stderr.splitlines()[-1] == advice
    assert ("Traceback" in done.stderr) == (status == 1)
