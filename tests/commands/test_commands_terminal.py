"""Every way a command can end: one line, one status, and nothing left half done."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from typer.testing import CliRunner

from kofn.commands import app, terminal
from kofn.commands import files as _files
from kofn.commands.apply import command as commands
from kofn.commands.compare.compare import compare
from support import full_but

LONG = "n" * 300


def run(*arguments, send=None):
    return CliRunner().invoke(app.app, [str(argument) for argument in arguments], input=send)


def one_line(result, status=2):
    """The line of a run that failed as it should: nothing on standard output, no traceback."""
    assert result.exit_code == status, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("kofn: ")
    return line


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a table and scores in it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 3)), columns=["a", "b", LONG])
    frame.assign(label=frame["a"] > 0).to_csv("data.csv", index=False)
    np.savetxt("x.csv", rng.normal(size=(2, 3)), delimiter=",")
    return tmp_path


READERS = {
    "select": ["select", "FILE", "--target", "label", "-k", "1"],
    "compare": ["compare", "FILE"],
    "apply": ["apply", "FILE", "-k", "1"],
}
BAD_FILES = {
    "a field of 200,000 characters": b'1,"' + b"2" * 200_000 + b'"\n',
    "an unfinished header": b"\x93NUMPY\x01\x00\x10\x00{'descr': [[[[     " + b"\x00" * 40,
    "a header of noise": b"\x93NUMPY\x01\x00\x20\x00" + bytes(range(128, 160)) + b"\x00" * 40,
    "a header that nests": b"\x93NUMPY\x01\x00\xe8\x03" + b"(" * 1000,
    "a newer version": b"\x93NUMPY\x09\x00\x10\x00" + b" " * 40,
    "UTF-16": "a,b\n1,2\n".encode("utf-16"),
    "a zero byte": b"a,b,label\n1,\x00,3\n",
    "nothing": b"",
    "an archive": b"PK\x03\x04" + b"\x00" * 30,
}


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("name", BAD_FILES)
def test_files_that_cannot_be_read(here, command, name):
    (here / "bad").write_bytes(BAD_FILES[name])
    one_line(run(*[part.replace("FILE", "bad") for part in READERS[command]]))


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("path", [LONG, ".", "none", "x.csv/deeper"])
def test_paths_that_are_no_file(here, command, path):
    line = one_line(run(*[part.replace("FILE", path) for part in READERS[command]]))
    assert len(line) < 200


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("path", [LONG, f"{LONG}/deeper"])
def test_results_that_cannot_be_named(here, command, path):
    file = "data.csv" if command == "select" else "x.csv"
    arguments = [part.replace("FILE", file) for part in READERS[command]]
    assert "File name too long" in one_line(run(*arguments, "--out", path))


def test_long_names_are_cut_in_titles_only(here):
    arguments = ["select", "data.csv", "--target", LONG, "--splits", 1, "--steps", 2, "-k", 1]
    result = run(*arguments, "--task", "regression")
    assert result.exit_code == 0, result.output
    assert "nnn…nnn" in result.stdout
    assert LONG in (here / "kofn-select" / "selection.json").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, names are Unicode")
@pytest.mark.parametrize("command", READERS)
def test_names_may_have_any_bytes(here, command):
    """JSON has an escape for them, a picture a box."""
    name = os.fsdecode(b"in\xff\xe6\x95\xb0\n")
    if command == "apply":
        np.save("x.npy", np.eye(3))
        os.rename("x.npy", name)
    else:
        os.rename("data.csv" if command == "select" else "x.csv", name)
    arguments = [part.replace("FILE", name) for part in READERS[command]]
    few = ["--splits", 1, "--steps", 1] if command == "select" else []
    result = run(*arguments, *few, "--out", f"{name}out", "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads(result.stdout)
    assert name in (found.get("scores"), found.get("table"))
    assert os.path.exists(f"{name}out")


def test_a_table_from_a_pipe_is_read_once(here):
    os.mkfifo("pipe")
    writer = subprocess.Popen(["sh", "-c", "cat data.csv > pipe"])
    result = run("select", "pipe", "--target", "label", "-k", 1, "--splits", 1, "--steps", 2)
    assert writer.wait() == 0
    assert result.exit_code == 0, result.output
    assert "fitted on all 40 rows" in result.stdout


@pytest.mark.parametrize(
    "option",
    [["--map", "normal"], ["--alpha", 2], ["--temperature", 1], ["--support", 2], ["--gap", 1]],
)
def test_the_hard_choice_takes_no_option_of_soft_ones(here, option):
    assert f"cannot be combined with {option[0]}" in one_line(
        run("apply", "x.csv", "-k", 1, "--hard", *option)
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["apply", "-k", "two"], "Invalid value for '-k'"),
        (["compare", "--tempe", 1], "No such option"),
        (["compare", "--tau", 1], "No such option: --tau; you may mean --temperature; see"),
        (["select", "--k", 1], "No such option: --k; you may mean -k; see"),
        (
            ["select", "--tau", 1],
            "No such option: --tau (Possible options",
        ),  # which has no temperature
        (["frobnicate"], "No such command 'frobnicate'"),
    ],
)
def test_usage_is_told_in_one_line_with_where_to_look(arguments, words):
    line = one_line(run(*arguments))
    assert words in line
    assert line.endswith("--help")


def test_without_a_command_the_help_is_shown():
    result = run()
    assert result.exit_code == 2
    assert "Commands:" in result.output


ENDS = {
    "memory": (MemoryError("Unable to allocate 9 TiB"), 1, "not enough memory: Unable"),
    "memory of PyTorch": (RuntimeError("can't allocate memory: 9 TiB"), 1, "not enough memory"),
    "a file": (OSError(13, "Permission denied", LONG), 1, "Permission denied"),
    "a full disk": (OSError(28, "No space left on device"), 1, "cannot write to standard output"),
    "too many files": (OSError(24, "Too many open files"), 1, "kofn: Too many open files"),
    "Ctrl-C": (KeyboardInterrupt(), 130, "interrupted; nothing was written"),
    "SIGTERM": (terminal.Terminated(), 143, "terminated; nothing was written"),
    "what is left": (KeyboardInterrupt("--resume goes on"), 130, "interrupted; --resume goes on"),
    "input": (_files.InputError("two\nlines"), 2, "kofn: two lines"),
}


@pytest.mark.parametrize("name", ENDS)
def test_every_end_is_one_line_and_a_status(here, monkeypatch, name):
    error, status, words = ENDS[name]

    def fail(*arguments):
        raise error

    for command in ("select", "compare", "apply"):
        monkeypatch.setattr(_files, "check_out", fail)
        arguments = [part.replace("FILE", "x.csv") for part in READERS[command]]
        assert words in one_line(run(*arguments, "--out", "w.csv"), status)
    assert words in one_line(run("bench", "--out", "here"), status)


def test_a_reader_that_leaves_is_no_error_to_talk_about(here, monkeypatch):
    monkeypatch.setattr(typer, "echo", lambda *_, **__: (_ for _ in ()).throw(BrokenPipeError()))
    result = run("apply", "x.csv", "-k", 1)
    assert (result.exit_code, result.stderr) == (1, "")


def test_a_bug_keeps_its_traceback(here, monkeypatch):
    monkeypatch.setattr(commands, "check_k", lambda *_, **__: 1 / 0)
    assert isinstance(run("apply", "x.csv", "-k", 1).exception, ZeroDivisionError)


def test_an_interrupt_after_the_files_does_not_deny_them(here, monkeypatch):
    def stop(*parts, **files):
        raise KeyboardInterrupt

    monkeypatch.setattr("kofn.commands.terminal.printed", stop)
    result = run("compare", "x.csv")
    assert result.stderr.splitlines()[-1] == "kofn: interrupted"
    assert (here / "kofn-compare" / "compare.json").exists()


def test_a_kernel_setting_that_does_not_exist_is_told(here, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", "bogus")
    for command in ("select", "compare", "apply"):
        file = "data.csv" if command == "select" else "x.csv"
        arguments = [part.replace("FILE", file) for part in READERS[command]]
        assert "KOFN_KERNELS must be" in one_line(run(*arguments))


def test_compiling_is_told_once_and_only_if_it_happens(capsys, monkeypatch, kernels_on):
    from kofn.kernels.cpu.compiler import now
    from kofn.kernels.cpu.rows import launch
    from kofn.kernels.cpu.runtime import library, native

    monkeypatch.setattr(now, "tell", now._tell_terminal)
    terminal.prepare_kernels()
    assert now.tell is now._tell_terminal or library.found() is None
    monkeypatch.setattr(library, "found", lambda: None)
    for _ in range(3):  # as many commands in one process
        terminal.prepare_kernels()
    assert capsys.readouterr().err == ""
    for name in ("peak", "statistics"):
        native._compiled(launch.pass_code("loops", name, 0, 4))
    assert capsys.readouterr().err.count("kofn: compiling kernels for this process") == 1


def test_compare_tells_how_far_it_is(rng):
    reported = []
    comparison = compare(rng.normal(size=(2, 4)), 2, "temperature", 1.0, reported.append)
    names = [each.name for each in comparison.maps]
    assert reported == [*names, *(f"{name}, over T" for name in names)]


@pytest.mark.parametrize(("bars", "last"), [("one", 2), ("two", 3)])
def test_progress_begins_at_nothing_done(monkeypatch, bars, last):
    seen = []

    def seeing(change):
        def changed(self, *task, **now):
            found = change(self, *task, **now)
            seen.append(self.tasks[0].completed)
            return found

        return changed

    for name in ("add_task", "update"):
        monkeypatch.setattr(terminal.Progress, name, seeing(getattr(terminal.Progress, name)))
    if bars == "one":
        with terminal.progress_bar(3) as tell:
            for name in "abc":
                tell(name)
    else:
        with terminal.TwoBars(3, 5) as two:
            for name in "abc":
                two.begin(name, trains=False)
            two.end()
    assert (min(seen), max(seen)) == (0, last)
    assert sorted(seen) == seen


@pytest.mark.parametrize("width", full_but((24, 200), (24, 40, 60, 80, 200)))
def test_narrow_terminals_get_whole_numbers(here, monkeypatch, width):
    """A table that is too wide becomes several, with some columns each."""
    monkeypatch.setenv("COLUMNS", str(width))
    select = ["select", "data.csv", "--target", "label", "--splits", 2, "--steps", 2, "-k", 1]
    shown = run(*select, "--force").stdout.partition("Chosen")[0]
    # With each of the nine methods, two scores; with all but the own, two differences.
    assert len(re.findall(r"(?<![\d.])[01]\.\d{3}\b", shown.replace("±", "+-"))) >= 18
    assert len(re.findall(r"[+-]\d\.\d{3} ± \d\.\d{3}\b", shown)) == 16
    shown += run("compare", "x.csv", "-k", 2, "--force").stdout
    assert "…" not in shown.replace("nn…nn", "")
    if width >= 40:
        assert max(map(len, shown.splitlines())) <= width
    if width >= 80:  # two tables of kofn compare, one of kofn select
        assert len(re.findall("─+", shown)) == 3


# --- as the shell starts it ---


def shell(line, **more):
    """A shell's run of `line`, in which KOFN is the command: (status, stdout, stderr)."""
    command = line.replace("KOFN", f"'{sys.executable}' -m kofn")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, **more)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has /dev/full")
@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("KOFN --version > /dev/full", 1, "cannot write to standard output: No space left"),
        ("KOFN --help >&-", 2, "standard output is closed"),
        ("KOFN apply -k 1 <&-", 2, "no scores: standard input is closed"),
        ("KOFN apply none -k 1 2>&-", 2, ""),
        ("KOFN apply none -k 1 2> /dev/full", 2, ""),
        ("KOFN 2> /dev/full", 2, ""),
    ],
)
def test_streams_that_are_full_or_closed(here, line, status, words):
    found, out, error = shell(line)
    assert (found, out) == (status, "")
    assert words in error
    assert len(error.splitlines()) == (1 if words else 0)


def test_sigterm_ends_as_an_interrupt_does(here):
    code = "import sys; from kofn.commands.app import main; print('ready', flush=True); main()"
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", code, "apply", "-k", "1"], **pipes)
    assert process.stdout.readline() == b"ready\n"
    time.sleep(1)  # by now it waits for scores
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert error == b"kofn: terminated; nothing was written\n"


def test_a_signal_amid_the_output_does_not_deny_it(here):
    """What is put out is more than a pipe holds, and nobody reads it to its end."""
    command = "from kofn.commands.app import main; main()"
    numbers = b"1,2,3\n" * 100_000
    Path("long.csv").write_bytes(numbers)
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    arguments = ["apply", "long.csv", "-k", "1"]
    process = subprocess.Popen([sys.executable, "-c", command, *arguments], **pipes)
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert process.communicate()[1] == b"kofn: terminated\n"


@pytest.mark.full
def test_characters_that_a_terminal_lacks_are_replaced(here):
    status, out, error = shell(
        "KOFN compare x.csv", env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert (status, error) == (0, "")
    assert "Gap: ?p" in out


def test_torch_words_a_lack_of_memory_as_it_is_known_here():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**58, dtype=torch.uint8)
    assert any(words in str(error.value) for words in terminal.OF_MEMORY)
