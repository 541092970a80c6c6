"""Every subcommand as a user calls it with little to do, for tests of all of them.

The subcommands are those of the app's own table. One that is new has to say in CALLS how it is
called; all kinds of trouble are then tried with it.
"""

import os
import re
import sys
from dataclasses import replace
from functools import cache, partial

import pytest
import typer
from typer.testing import CliRunner

from kofn.commands import app
from kofn.commands.bench import cases, contenders
from kofn.commands.compare import compare as measures
from studies.frame.command import app as app_of
from studies.table import STUDIES

COMMANDS = typer.main.get_command(app.app).commands


def _flag(name):
    return f"--{name}" if len(name) > 1 else f"-{name}"


CALLS = {
    "select": "table.csv --target label -k 1 --splits 1 --steps 1",
    "compare": "x.npy -k 2",
    "apply": "x.npy -k 2",
    "explore": "",
    "warm": "",
    "bench": "--case router --dtype float32 --rounds 2 --threads 1 --busy",
    "train": "vae",
    **{
        f"studies.{study.name}": " ".join(
            [
                *("--seeds 1 --method", next(iter(study.options[0].names))),
                *(f"--{o.name} 1" for o in study.options if o.name in ("steps", "epochs")),
                *(f"{_flag(o.name)} {o.default[0]}" for o in study.options[1:] if o.repeats),
            ]
        )
        for study in STUDIES.values()
    },
}
OUT = {"apply": "w.npy", "explore": "e.html"}
"""What --out is, where that is not a folder."""

# The studies share one frame; the ordinary run looks at the first of them.
EVERY = [
    pytest.param(name, marks=pytest.mark.full if number else ())
    if name.startswith("studies")
    else name
    for number, name in enumerate(
        [*COMMANDS, *(f"studies.{name}" for name in STUDIES)], -len(COMMANDS)
    )
]
every_command = pytest.mark.parametrize("name", EVERY)


def has(name, option):
    made = COMMANDS.get(name) or typer.main.get_command(
        app_of(STUDIES[name.removeprefix("studies.")])
    )
    return any(option in parameter.opts for parameter in made.params)


WRITERS = [each for each in EVERY if has(getattr(each, "values", [each])[0], "--out")]
every_writer = pytest.mark.parametrize("name", WRITERS)


def _dear(names):
    """The same names; those of programs that take seconds are left to the full run."""
    plain = [getattr(each, "values", [each])[0] for each in names]
    dear = [name == "select" or name.startswith("studies") for name in plain]
    return [
        pytest.param(name, marks=pytest.mark.full if is_dear else ())
        for name, is_dear in zip(plain, dear, strict=True)
    ]


most_commands = pytest.mark.parametrize("name", _dear(EVERY))
most_writers = pytest.mark.parametrize("name", _dear(WRITERS))
"""For what all programs leave to the same code of kofn/commands/terminal.py."""


def typed(name, *more, out=True):
    """The arguments of a call."""
    given = ["--out", OUT.get(name, "c")] if out and has(name, "--out") else []
    return [*([] if name.startswith("studies") else [name]), *CALLS[name].split(), *given, *more]


def target_of(name):
    """What a process calls with the arguments."""
    if name.startswith("studies"):
        return partial(_study, name.removeprefix("studies."))
    return _command


def _study(name, arguments):
    app_of(STUDIES[name])(arguments)


def _command(arguments):
    less_to_time(setattr)
    app.app(arguments)


def less_to_time(patch):
    """Let `kofn bench` and `compare` measure little: JAX compiles for minutes, PyTorch for one."""
    patch(measures, "CURVE_POINTS", 5)
    patch(cases, "CASES", [replace(case, shape=(4, 64), k=2) for case in cases.CASES[:1]])
    patch(contenders, "_jax", lambda k, versions: iter(()))
    patch(contenders, "compiled", lambda function: function)


def run(name, *more, **how):
    """A call in this process: status, and standard output and error."""
    of = app_of(STUDIES[name.removeprefix("studies.")]) if name.startswith("studies") else app.app
    result = CliRunner().invoke(of, typed(name, *more, **how))
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        name,
        more,
        repr(result.exception),
    )
    return result


PROGRESS = re.compile(r"kofn: \d+/\d+.*, \d+ s")
"""What a command says of its progress after ten seconds, which a crowded machine may take."""


def told(status, error, allowed=(0, 2)):
    """A status that docs/commands.md has; with another than 0, one line."""
    assert status in allowed, (status, error)
    lines = [line for line in error.splitlines() if line.strip() and not PROGRESS.fullmatch(line)]
    assert status == 0 or (len(lines) == 1 and lines[0].startswith("kofn: ")), (status, error)


def tree(folder):
    """What is in a folder: the bytes of files, and where links lead."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


_seen = None


def _see(event, arguments):
    if _seen is None:
        return
    if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
        if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            _seen.add(os.path.abspath(arguments[0]))
    elif event in ("os.rename", "os.link"):
        _seen.add(os.path.abspath(arguments[1]))


_names = {}


@cache
def _watch():
    """From the first use on: a hook stays for ever, and Python calls it for every event."""
    sys.addaudithook(_see)


def names_of(name, folder):
    """The names of files that a call writes, also for a while, and of those that it leaves."""
    global _seen
    if name not in _names:
        _watch()
        before, found = {*tree(folder)}, []
        for more in ((), ("--force",)):
            _seen = set()
            result = run(name, *more)
            told(result.exit_code, result.stderr, (0,))
            inside = (os.path.relpath(path, folder) for path in _seen)
            found.append({path for path in inside if not path.startswith("..")})
            _seen = None
        left = {*tree(folder)} - before
        for path in left:
            os.unlink(path)
        for each in [each for each in folder.iterdir() if each.is_dir()]:
            each.rmdir()
        # Names that nobody can know are others the second time.
        _names[name] = sorted(found[0] & found[1]), left
        assert left <= found[0]
    return _names[name]
