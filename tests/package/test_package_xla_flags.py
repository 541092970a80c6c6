"""How XLA compiles for tests: an unknown flag, or too many programs, would end them unsaid."""

import os
import re
import subprocess
import sys

import jax
import pytest

import jax_programs
import xla_flags
from places import ROOT


@pytest.mark.full  # each call starts processes that import JAX
def test_flags_that_the_installed_jaxlib_does_not_know_are_left_out():
    wanted = ("--xla_of_another_year=1", xla_flags.SOONER[0], "--xla_of_no_year=true")
    assert xla_flags.known(wanted) == (xla_flags.SOONER[0],)
    assert xla_flags.known(wanted[:1]) == ()


@pytest.mark.full
def test_the_tests_have_flags_that_their_jaxlib_takes():
    """Without what was set for this process: as conftest.py finds them."""
    code = "import os, conftest, jax; jax.devices(); print(os.environ['XLA_FLAGS'])"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    assert xla_flags.SOONER[0] in done.stdout


def test_the_version_that_is_not_asked_is_the_pinned_one():
    pinned = re.search(r"^jaxlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert pinned[1] == xla_flags.ALL_KNOWN


def test_programs_are_counted_and_let_go_of_when_they_map_much(monkeypatch):
    """JAX tells how long each took; without that, none would be let go of."""
    let_gone = []
    monkeypatch.setattr(jax_programs, "_pieces", lambda: 30_000)
    monkeypatch.setattr(jax_programs, "let_go", lambda: let_gone.append(True))
    monkeypatch.setattr(jax_programs, "_timed", timed := [])
    jax.jit(lambda x: x - 0.125)(1.5)
    assert len(timed) >= 3
    jax_programs.let_go_of_many()
    assert not let_gone
    timed += ["a program"] * 1000
    jax_programs.let_go_of_many()
    assert let_gone
    assert not timed
