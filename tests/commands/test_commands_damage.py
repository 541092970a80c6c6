"""Every subcommand with damaged inputs and records: read rightly, or refused in a line."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from called import (
    CALLS,
    every_command,
    every_writer,
    has,
    names_of,
    run,
    told,
    tree,
)
from kofn import soft_topk
from kofn.commands.apply.partial import Partial

pytestmark = pytest.mark.usefixtures("here")


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
    range(1),
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
@pytest.mark.parametrize("numbers", [range(6), *MUTATIONS[1:]])
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
