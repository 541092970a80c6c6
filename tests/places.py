"""Where the repository and its tests lie, and test files as programs of their own."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def as_program(file, *arguments, devices=None, **environment):
    """Run a test file in a process of its own, where JAX has so many devices of the CPU."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    if devices is not None:
        flags = environment.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}"
    return subprocess.run(
        [sys.executable, file, *arguments],
        env=environment,
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
