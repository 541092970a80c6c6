"""Threads of the fused rows, and callers who are gone before these have finished."""

import subprocess
import sys
from pathlib import Path

import pytest

from kofn.kernels.cpu.runtime import layout, native


@pytest.mark.parametrize("times", [40, pytest.param(2000, marks=pytest.mark.full)])
def test_a_signal_handler_that_raises_leaves_no_thread_behind(times):
    """No freed memory is written to, nothing spins, and the next answer is right."""
    program = Path(__file__).parent / "interrupted.py"
    run = subprocess.run(
        [sys.executable, str(program), str(times)], capture_output=True, text=True, timeout=900
    )
    assert run.returncode == 0, (run.returncode, run.stderr[-2000:])


def test_nobody_waits_for_a_caller_who_has_not_begun():
    """Whatever is offered before the caller is interrupted ends by itself, and does nothing."""
    import numpy as np

    from kofn.kernels.cpu.rows import launch
    from kofn.kernels.cpu.rows.layout import WORDS

    job = np.zeros(WORDS, np.int64)
    job[layout.COUNT] = 1
    native.function(launch.FORWARD)(job.ctypes.data, 0, 0.0, False)  # would write to address 0
    native.function(launch.ASSIST)(job.ctypes.data)
    assert job[layout.NEXT] == job[layout.DONE] == 0


def test_helpers_end_before_the_process_does():
    """Python ends a thread that comes back from native code after that, and then all may abort."""
    program = """
import atexit, ctypes, threading, time

def told():  # registered first, so it is called last
    print([thread.name for thread in threading.enumerate() if thread.name.startswith("kofn")])

atexit.register(told)
from kofn.kernels.cpu.runtime import pool

asleep = ctypes.CDLL(None).usleep
pool.offer([(200_000,)], asleep, None)
time.sleep(0.05)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr
