"""The table of studies, the command line that is made of it, and where the studies stand."""

import ast
import re
import shlex
import subprocess
import sys
import textwrap
from importlib import import_module

import pytest
import typer
from typer.testing import CliRunner

from kofn.commands import app as command
from kofn.commands.files import InputError
from kofn.commands.moved import STUDIES as MOVED
from places import ROOT
from studies.frame import pictures
from studies.frame.command import app
from studies.frame.options import Option, Settings, count, names
from studies.table import STUDIES
from test_commands_help import WITHOUT_RICH as INDENTED

WITHOUT_RICH = textwrap.dedent(INDENTED)
PUBLIC = ("kofn", "kofn.nn", "kofn.losses", "kofn.commands", "kofn.estimators")


def help_of(study):
    return CliRunner().invoke(app(study), ["--help"]).stdout


def imported(folder):
    """Every import below a folder: file and module."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                yield path.name, node.module
            elif isinstance(node, ast.Import):
                yield from ((path.name, alias.name) for alias in node.names)


def test_the_package_does_not_know_the_studies():
    assert [each for each in imported("src") if each[1].partition(".")[0] == "studies"] == []


def test_studies_use_public_names_of_the_package_and_helpers_of_its_command():
    found = {module for _, module in imported("studies") if module.partition(".")[0] == "kofn"}
    helpers = {module for module in found if module.startswith("kofn.commands.")}
    assert found - helpers <= set(PUBLIC)


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_a_study_makes_every_method_that_the_table_names(study):
    code = import_module(f"studies.{study.name}.study")
    (methods,) = (each for each in study.options if each.name == "method")
    assert list(methods.names) == [name for name in code.METHODS if name != "dense"]
    settings = study.settings({})
    assert [*settings.methods] == [*methods.names][: len(settings.methods)]
    assert {key[-1] for key in code.Run.runs(settings)} == set(settings.every_seed)
    assert all(len(key) == len(code.Report.KEY) for key in code.Run.runs(settings))
    run = code.Run.__new__(code.Run)
    run.key = code.Run.runs(settings)[0]
    for part in run.key:
        assert str(part) in run.title


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_quick_chooses_few_steps_and_one_seed(study):
    usual, quick = study.settings({}), study.settings({}, quick=True)
    changed = {name for name in vars(usual) if vars(usual)[name] != vars(quick)[name]}
    assert changed - {"seeds", "lengths"} in ({"steps"}, {"epochs"})
    assert quick.seeds == 1
    assert study.settings({"seeds": 1}).seeds == 1
    for name in (*changed & {"steps", "epochs"}, "seeds"):
        with pytest.raises(InputError, match=f"--quick chooses --{name} itself"):
            study.settings({name: 7}, quick=True)


def test_an_option_may_be_given_beside_quick_if_the_table_says_so():
    study = STUDIES["attention"]
    assert study.settings({}).lengths == (64, 128, 256, 512, 1024, 2048, 4096)
    assert study.settings({}, quick=True).lengths == (64, 128)
    assert study.settings({"longest": 300}, quick=True).lengths == (64, 128, 256)
    assert study.settings({"longest": 64}).lengths == (64,)


def test_what_is_given_twice_counts_once():
    settings = STUDIES["router"].settings({"k": [2, 1, 2], "task": ["text", "known", "text"]})
    assert (settings.ks, settings.tasks) == ((2, 1), ("text", "known"))
    settings = STUDIES["prune"].settings({"removed": ["0.90", "2:4", "0.9"]})
    assert settings.removed == ("0.9", "2:4")


def test_the_help_of_names_says_which_are_usual():
    allowed = {"a": "one", "b": "another", "c": "a third"}
    text = names("method", "Way; {names}", allowed).text
    assert text == "Way; repeat the option for several. All by default: a, b, c."
    text = names("method", "Way; {names}", allowed, usual=2).text
    assert text == "Way; repeat the option for several. By default: a, b. Also available: c."
    assert count("steps", "Steps", 4096, quick=2).text == "Steps; by default 4,096."
    assert count("steps", "Steps.", 4096).text == "Steps."
    assert Option("k", "Up to {default}.", 4).text == "Up to 4."


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_every_help_has_examples_that_can_be_typed(study):
    page = help_of(study)
    assert page.startswith("Usage: ")
    options = {
        name for parameter in typer.main.get_command(app(study)).params for name in parameter.opts
    }
    examples = re.findall(r"^ {4}(?! )(.*)$", page.partition("Examples:")[2], re.M)
    assert len(examples) == 2
    for example in examples:
        *start, option = shlex.split(example)
        assert start == ["python", "-m", f"studies.{study.name}"]
        assert option in options
    assert max(map(len, page.splitlines())) <= 80


def typed(*words):
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


def test_the_studies_are_listed():
    status, listed, errors = typed("studies")
    assert (status, errors) == (0, "")
    for study in STUDIES.values():
        first = study.help.splitlines()[0]
        assert re.search(rf"^  python -m studies\.{study.name} +{first}$", listed, re.M)
    status, listed, errors = typed("studies", "router")
    assert (status, listed) == (2, "")
    assert "python -m studies.router" in errors


def test_a_study_runs_by_its_name_and_refuses_in_one_line():
    status, printed, errors = typed("studies.router", "--help")
    assert (status, errors) == (0, "")
    assert printed.startswith("Usage: python -m studies.router [OPTIONS]")
    status, printed, errors = typed("studies.router", "--magic")
    assert (status, printed) == (2, "")
    assert errors == "kofn: No such option: --magic; see python -m studies.router --help\n"


def test_without_its_packages_a_study_says_what_to_install():
    code = WITHOUT_RICH + "import runpy; runpy.run_module('studies.router', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    advice = 'the command needs rich; install it with: pip install "kofn[cli]"'
    assert done.stderr == f"kofn: {advice}\n"


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (["router", "--quick"], "python -m studies.router"),
        (["vae", "--method", "softmax", "-k", "3"], "python -m studies.vae"),
        (["prune", "--help"], "python -m studies.prune"),
        (["--help"], "python -m studies, which lists them"),
        ([], "python -m studies, which lists them"),
        (["magic"], "python -m studies, which lists them"),
    ],
)
def test_the_old_command_names_the_new_one(words, new):
    done = CliRunner().invoke(command.app, ["train", *words])
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kofn: ")
    assert line.endswith(new)
    younger = {"balance", "choice", "losses", "replay"}
    assert sorted(MOVED) == sorted(set(STUDIES) - younger)
    assert "train" not in CliRunner().invoke(command.app, ["--help"]).stdout


def test_settings_know_their_seeds():
    assert list(Settings(seed=3, seeds=2).every_seed) == [3, 4]


@pytest.mark.parametrize(("order", "wanted"), [((), "bac"), ("abcd", "abc")])
def test_a_legend_has_each_label_once(order, wanted):
    figure, (panels,) = pictures.panels(4, 2, 1, 2)
    for panel, labels in zip(panels, ("ba", "ca"), strict=True):
        for label in labels:
            pictures.line(panel, [0, 1], [0, 1], label=label)
    pictures.legend(figure, order)
    (made,) = figure.legends
    assert "".join(text.get_text() for text in made.get_texts()) == wanted
