"""Every function ends on rows of subnormal scores, and of scores one ulp apart: see sweep.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sweep

HERE = Path(__file__).parent
PARTS = [
    (name, framework)
    for name in sweep.SWEEPS
    for framework in sweep.ONLY.get(name, ("numpy", "torch", "jax"))
]


def run(name, framework, share, seconds):
    """Run a part of the sweep in a process, which fails if it does not end."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(HERE / "sweep.py"), name, framework, str(share)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize(("name", "framework"), [("soft", "numpy"), ("alphas", "torch")])
def test_a_sample_of_the_sweep_ends(name, framework):
    run(name, framework, 0.002, 300)


@pytest.mark.full
@pytest.mark.parametrize(("name", "framework"), PARTS)
def test_the_sweep_ends(name, framework):
    run(name, framework, 0.02 if framework == "jax" else 0.2, 1800)
