"""Where the repository and its tests lie, and test files as programs of their own."""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import ranks

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def as_program(file, *arguments, devices=None, anew=False, **environment):
    """Run a test file in a process of its own, where JAX has so many devices of the CPU.

    On Linux it forks from one that has imported PyTorch and JAX, and used neither, if not `anew`:
    JAX reads most of its variables then.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    if devices is not None:
        flags = environment.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}"
    command = [file, *arguments]
    if anew or ranks.START != "forkserver":
        command = [sys.executable, *command]
        return subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True)
    context = multiprocessing.get_context(ranks.START)
    context.set_forkserver_preload(ranks.PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("out", "err")]
        process = context.Process(target=_run, args=(command, environment, sys.path, said))
        process.start()
        process.join()
        return subprocess.CompletedProcess(
            command, process.exitcode, *(one.read_text("utf-8") for one in said)
        )


def _run(command, environment, path, said):
    for number, one in enumerate(said, 1):
        os.dup2(os.open(one, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(TESTS)
    sys.argv, sys.path[:] = command, [str(Path(command[0]).parent), *path]
    try:
        runpy.run_path(command[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
