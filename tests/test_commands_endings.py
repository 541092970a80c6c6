"""Every subcommand in all that goes wrong with files: right, or a line, and nothing is lost.

The subcommands are those of the app's own table. One that is new has to say in CALLS how it is
called, with little to do; all kinds of trouble are then tried with it.
"""

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from ended import Running, ended
from kofn import soft_topk
from kofn.commands import app
from kofn.commands.apply.partial import Partial
from kofn.commands.bench import cases, contenders
from studies.frame.command import app as app_of
from studies.table import STUDIES

COMMANDS = typer.main.get_command(app.app).commands

CALLS = {
    "select": "table.csv --target label -k 1 --splits 1 --steps 1",
    "compare": "x.npy -k 2",
    "apply": "x.npy -k 2",
    "explore": "",
    "warm": "",
    "bench": "--case router --dtype float32 --rounds 2 --threads 1",
    "train": "vae",
    **{
        f"studies.{study.name}": " ".join(
            [
                *("--seeds 1 --method", next(iter(study.options[0].names))),
                *(f"--{o.name} 1" for o in study.options if o.name in ("steps", "epochs")),
                *(f"--{o.name} {o.default[0]}" for o in study.options[1:] if o.repeats),
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
READERS = [each for each in EVERY if isinstance(each, str) and "." in CALLS[each].partition(" ")[0]]


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
    """Let `kofn bench` time little: JAX compiles for minutes."""
    patch(cases, "CASES", [replace(case, shape=(4, 64), k=2) for case in cases.CASES[:1]])
    patch(contenders, "_jax", lambda k, versions: iter(()))


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


def told(status, error, allowed=(0, 2)):
    """A status that docs/commands.md has; with another than 0, one line."""
    assert status in allowed, (status, error)
    lines = [line for line in error.splitlines() if line.strip()]
    assert status == 0 or (len(lines) == 1 and lines[0].startswith("kofn: ")), (status, error)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with scores and a table."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    less_to_time(monkeypatch.setattr)
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.normal(size=(4, 50)))
    rows = rng.normal(size=(40, 3)).round(3).tolist()
    lines = [",".join(map(str, [*row, "yn"[row[0] > 0]])) for row in rows]
    (folder / "table.csv").write_text("\n".join(["a,b,c,label", *lines, ""]))
    return folder


def tree(folder):
    """What is in a folder: the bytes of files, and where links lead."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


# --- names ---

KINDS = ["file", "link", "link to nothing", "folder", "link to the input"]

_seen = None


def _see(event, arguments):
    if _seen is None:
        return
    if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
        if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            _seen.add(os.path.abspath(arguments[0]))
    elif event in ("os.rename", "os.link"):
        _seen.add(os.path.abspath(arguments[1]))


sys.addaudithook(_see)
_names = {}


def names_of(name, folder):
    """The names of files that a call writes, also for a while, and of those that it leaves."""
    global _seen
    if name not in _names:
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


@every_writer
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.full)])
def test_what_has_a_name_that_is_written_is_not_lost(name, kind, full, here):
    """A file of the user's, or a link to one; with --force, only the results go."""
    names, results = names_of(name, here)
    theirs = here.parent / "theirs"
    chosen = KINDS.index(kind) % len(names)
    for number, path in enumerate(names):
        for force in ((), ("--force",)):
            if force and number != chosen and not full:
                continue
            theirs.write_bytes(b"precious")
            place = here / path
            place.parent.mkdir(exist_ok=True)
            if kind == "file":
                place.write_bytes(b"precious")
            elif kind == "folder":
                place.mkdir()
            else:
                leads = {"link": theirs, "link to nothing": here.parent / "nothing"}
                place.symlink_to(leads.get(kind, here / "x.npy"))
            before = tree(here)
            result = run(name, *force)
            told(result.exit_code, result.stderr)
            assert theirs.read_bytes() == b"precious"
            assert not (here.parent / "nothing").exists()
            after = tree(here)
            if not force or path not in results:
                assert after.get(path) == before.get(path), path
                assert place.is_dir() == (kind == "folder")
            if result.exit_code:
                assert after == before, path
            for each in {*after} - {*before} | ({path} & {*before}):
                (here / each).unlink()
            if kind == "folder":
                place.rmdir()
            if place.parent != here:
                place.parent.rmdir()
    for each in ("x.npy", "table.csv"):
        assert (here / each).stat().st_size


@every_writer
def test_the_input_is_not_overwritten(name, here):
    """Under no name that is written, also with --force, be it a link to it or from it."""
    source = CALLS[name].partition(" ")[0]
    if not os.path.isfile(source):
        pytest.skip("it reads no file")
    content = Path(source).read_bytes()
    for path in names_of(name, here)[0]:
        place = here / path
        place.parent.mkdir(exist_ok=True)
        os.replace(source, place)
        arguments = [path if each == source else each for each in typed(name, "--force")]
        result = CliRunner().invoke(app.app, arguments)
        told(result.exit_code, result.stderr)
        assert place.read_bytes() == content, path
        os.replace(place, source)
        if place.parent != here:
            for each in place.parent.iterdir():
                each.unlink()
            place.parent.rmdir()
        for each in {*tree(here)} - {"x.npy", "table.csv"}:
            (here / each).unlink()


# --- disks and pipes ---

needs_forks = pytest.mark.skipif(sys.platform != "linux", reason="needs a process to fork from")


@needs_forks
@every_writer
@pytest.mark.parametrize("limit", [0, 200, pytest.param(5000, marks=pytest.mark.full)])
def test_a_disk_that_is_full_leaves_nothing_half_done(name, limit, here):
    before = tree(here)
    end = ended(target_of(name), typed(name), here, limit=limit)
    told(end.status, end.error, (1,))
    if "--resume continues" in end.error:  # of kofn apply and of the studies
        again = run(name, "--resume")
        told(again.exit_code, again.stderr, (0,))
        return
    assert "nothing was written" in end.error
    assert tree(here) == before
    assert [each for each in here.iterdir() if each.is_dir()] == []


@needs_forks
@every_command
@pytest.mark.parametrize("unbuffered", [False, True])
def test_standard_output_is_whole_or_the_status_says_so(name, unbuffered, here):
    """A disk that fills up takes some bytes of a write, and a pipe of which nobody reads none."""
    how = {"unbuffered": unbuffered}
    arguments = typed(name, *(["--json"] * (has(name, "--json") and name != "apply")), out=False)
    if name.startswith("studies") or name == "explore":
        arguments = typed(name)
    arguments = [each.replace("x.npy", "x.csv") for each in arguments]
    np.savetxt("x.csv", np.load("x.npy"), delimiter=",")
    full = ended(target_of(name), arguments, here, **how)
    assert full.status in (0, 2)
    if not full.out:
        return
    for each in ("w.npy", "e.html", "c"):
        subprocess.run(["rm", "-rf", each], check=True)
    cut = ended(target_of(name), arguments, here, out="closed", **how)
    assert cut.status == 1, cut
    assert cut.error == full.error  # `kofn warm` says something there
    if not has(name, "--out") or name in ("apply", "compare", "select", "bench"):
        cut = ended(target_of(name), arguments, here, out="file", limit=len(full.out) // 2, **how)
        told(cut.status, cut.error.removeprefix(full.error), (1,))


# --- two at once ---


@needs_forks
@every_writer
def test_of_two_runs_at_once_one_is_refused(name, here):
    """The first has begun to write when the second comes; both would end with "Wrote"."""
    results = names_of(name, here)[1]
    first = Running(target_of(name), typed(name), here, waits=True)
    assert first.reached()
    second = ended(target_of(name), typed(name), here)
    told(second.status, second.error, (2,))
    assert "another run of kofn is writing" in second.error or "exists" in second.error
    last = first.ended()
    told(last.status, last.error, (0,))
    assert {*tree(here)} == {*results, "x.npy", "table.csv"}


# --- signals ---

HOOK = """
import os, signal, sys
NUMBER, PLACE = int(os.environ["NUMBER"]), int(os.environ["PLACE"])
class Finder:
    count = 0
    def find_spec(self, name, path=None, target=None):
        if name == "kofn.links" or Finder.count:
            Finder.count += 1
            if Finder.count == PLACE:
                os.kill(os.getpid(), NUMBER)
sys.meta_path.insert(0, Finder())
"""
"""In sitecustomize.py: a signal when a process imports a module, by its place after the first."""

PLACES = [1, 30, 150, 700, 1500]
"""Of the package, of NumPy, of the command, of what a subcommand needs."""


@pytest.mark.skipif(os.name == "nt", reason="signals are other things there")
@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(name, place, marks=pytest.mark.full if (i + j) % len(PLACES) else ())
        for i, name in enumerate([*COMMANDS, "studies.vae"])
        for j, place in enumerate(PLACES)
    ],
)
def test_a_signal_while_modules_are_imported_is_one_line(name, place, here):
    number = [signal.SIGINT, signal.SIGTERM][place % 4 // 2]
    (here.parent / "sitecustomize.py").write_text(HOOK)
    paths = [str(here.parent), *filter(None, sys.path)]
    settings = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PLACE": str(place),
        "NUMBER": str(int(number)),
    }
    module = ["kofn", *typed(name)] if "studies" not in name else [name, *typed(name)]
    before = tree(here)
    done = subprocess.run(
        [sys.executable, "-m", *module],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode in (0, 2):  # it has imported less than that
        told(done.returncode, done.stderr)
        return
    what = "interrupted" if number == signal.SIGINT else "terminated"
    assert done.returncode == 128 + number
    assert done.stderr == f"kofn: {what}; nothing was written\n"
    assert tree(here) == before


# --- damage ---


def damaged(content, number):
    """One of many ways to damage a file."""
    draw = random.Random(number)
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        start = draw.randrange(len(data) + 1)
        stop = min(len(data), start + draw.choice([1, 1, 4, 30]))
        kind = draw.randrange(6)
        if kind == 0:
            data[start:stop] = bytes(draw.randrange(256) for _ in range(stop - start))
        elif kind == 1:
            del data[start:stop]
        elif kind == 2:
            data[start:start] = data[start:stop]
        elif kind == 3:
            del data[start:]
        elif kind == 4:
            data[start:stop] = draw.choice([b"-1", b"nan", b"1e999", b'"', b"\n", b",", b"\0"])
        elif start < len(data):
            data[start] ^= 1 << draw.randrange(8)
    return bytes(data)


MUTATIONS = [
    range(6),
    *(pytest.param(range(i, i + 50), marks=pytest.mark.full) for i in range(0, 300, 50)),
]


@every_command
@pytest.mark.parametrize("numbers", MUTATIONS)
def test_a_damaged_input_is_read_or_refused_in_one_line(name, numbers, here):
    source = Path(CALLS[name].partition(" ")[0])
    if not source.is_file():
        pytest.skip("it reads no file")
    results = names_of(name, here)[1]
    content, before = source.read_bytes(), tree(here)
    for number in numbers:
        source.write_bytes(damaged(content, number))
        result = run(name, "--force")
        told(result.exit_code, result.stderr)
        if result.exit_code:
            assert result.stdout == "", number
            assert {*tree(here)} <= {*before} | results
        source.write_bytes(content)


def is_right(name):
    """Whether the results are those of a run without a break."""
    if name != "apply":
        return True
    return np.array_equal(np.load("w.npy"), soft_topk(np.load("x.npy"), 2))


@every_writer
@pytest.mark.parametrize("numbers", [range(40), *MUTATIONS[1:]])
def test_a_damaged_record_is_refused_and_kept(name, numbers, here, monkeypatch):
    """What --resume reads: of kofn apply, and the checkpoint of a study."""
    if not has(name, "--resume"):
        pytest.skip("it does not resume")
    results = names_of(name, here)[1]

    def stop(*now, **how):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Partial, "finish", stop)
        patch.setattr("studies.frame.report.Report.contents", stop)
        stopped = run(name)
    told(stopped.exit_code, stopped.stderr, (130,))
    assert "--resume continues" in stopped.stderr
    records = [each for each in {*tree(here)} if each.endswith((".progress", ".pt"))]
    (record,) = records
    content = (here / record).read_bytes()
    before, accepted = tree(here), 0
    for number in numbers:
        changed = damaged(content, number)
        (here / record).write_bytes(changed)
        result = run(name, "--resume")
        told(result.exit_code, result.stderr)
        if result.exit_code == 2:
            assert tree(here) == {**before, record: changed}
            continue
        accepted += 1  # another form of the same numbers, such as a space more
        assert results <= {*tree(here)}
        assert is_right(name)
        for path in [path for path in before if tree(here).get(path) != before[path]]:
            (here / path).write_bytes(before[path])
        for path in {*tree(here)} - {*before}:
            (here / path).unlink()
    assert accepted <= len(numbers) / 4
    (here / record).write_bytes(content)
    told(run(name, "--resume").exit_code, "", (0,))
    assert is_right(name)


def test_a_record_that_says_what_cannot_be_is_refused(here, monkeypatch):
    """As somebody might write it; nothing of it is believed."""

    def stop(*now):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Partial, "finish", stop)
        assert run("apply").exit_code == 130
    record = here / "w.npy.progress"
    good = json.loads(record.read_text())
    for key in good:
        for value in (-1, 10**9, 1.5, True, None, "x", [], {}, [1], {"a": 1}):
            if good[key] != value:
                record.write_text(json.dumps({**good, key: value}))
                told(run("apply", "--resume").exit_code, "kofn: refused", (2,))
    record.write_text(json.dumps(good))
    told(run("apply", "--resume").exit_code, "", (0,))
