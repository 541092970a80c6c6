"""Every subcommand beside files of others, on full disks, in pairs, with signals: none is lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from called import (
    CALLS,
    COMMANDS,
    every_writer,
    has,
    most_commands,
    most_writers,
    names_of,
    run,
    target_of,
    told,
    tree,
    typed,
)
from ended import Running, ended
from kofn.commands import app

pytestmark = pytest.mark.usefixtures("here")


KINDS = ["file", "link", "link to nothing", "folder", "link to the input"]
KINDS += [] if os.name == "nt" else ["pipe"]


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
            elif kind == "pipe":
                os.mkfifo(place)
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
            if kind == "pipe":
                assert result.exit_code == 2
                assert place.is_fifo()
                place.unlink()
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
@most_writers
@pytest.mark.parametrize(
    "limit", [200, *(pytest.param(each, marks=pytest.mark.full) for each in (0, 1000))]
)
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
@most_commands
@pytest.mark.parametrize("unbuffered", [True, pytest.param(False, marks=pytest.mark.full)])
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
@most_writers
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
FEW = [("warm", 30), ("compare", 1500)]


@pytest.mark.skipif(os.name == "nt", reason="signals are other things there")
@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(name, place, marks=() if (name, place) in FEW else pytest.mark.full)
        for name in [*COMMANDS, "studies.vae"]
        for place in PLACES
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
