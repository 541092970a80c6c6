"""Threads of the kernels for rows, and callers who are gone before these have finished."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import kofn
from kofn.kernels.cpu.runtime import layout, native
from kofn.kernels.cpu.runtime import pool as threads


@pytest.mark.parametrize("times", [20, pytest.param(2000, marks=pytest.mark.full)])
def test_a_signal_handler_that_raises_leaves_no_thread_behind(times):
    """No freed memory is written to, nothing spins, and the next answer is right."""
    program = Path(__file__).parent / "interrupted.py"
    run = subprocess.run(
        [sys.executable, str(program), str(times)], capture_output=True, text=True, timeout=900
    )
    assert run.returncode == 0, (run.returncode, run.stderr[-2000:])


def test_nobody_waits_for_a_caller_who_has_not_begun():
    """Whatever is offered before the caller is interrupted ends by itself, and does nothing."""
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

def report_at_end():  # registered first, so it is called last
    print([thread.name for thread in threading.enumerate() if thread.name.startswith("kofn")])

atexit.register(report_at_end)
from kofn.kernels.cpu.runtime import pool

asleep = ctypes.CDLL(None).usleep
pool.offer([(200_000,)], asleep, None)
time.sleep(0.05)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


def test_several_threads_at_once(rng):
    x = rng.standard_normal((32, 2000)).astype(np.float32)
    wanted = kofn.soft_topk(x, 5)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: kofn.soft_topk(x, 5), range(40)))
    assert all(np.array_equal(a, wanted) for a in answers)


@pytest.mark.parametrize("times", [3, pytest.param(200, marks=pytest.mark.full)])
def test_threads_that_begin_at_once_get_the_answers_of_one(times):
    """Most of all without Python's lock (3.14t): `make test-pythons` runs this there, too."""
    program = Path(__file__).parent / "hammered.py"
    command = [sys.executable, "-W", "error", str(program), str(times)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_after_the_parent_has_used_the_threads():
    code = """
import os, warnings
import numpy as np
import torch
from kofn import soft_topk
warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is the point
torch.set_num_threads(2)
x = torch.randn(64, 2000)
wanted = soft_topk(x, 7)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(soft_topk(x, 7), wanted) else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(soft_topk(x, 7), wanted)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_threads_of_numpy_are_those_asked_for(monkeypatch):
    monkeypatch.setenv("KOFN_NUM_THREADS", "3")
    assert threads.wanted(np.ones(2)) == 3
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("KOFN_NUM_THREADS", wrong)
        with pytest.raises(ValueError, match="KOFN_NUM_THREADS must be a whole number from 1"):
            threads.wanted(np.ones(2))
    monkeypatch.delenv("KOFN_NUM_THREADS")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # macOS and Windows have none
    assert threads.wanted(np.ones(2)) == os.cpu_count()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(40, 24), (90, 300), (2, 9000), (1, 140_001)])
def test_memory_of_threads_may_hold_anything(shape, dtype, monkeypatch):
    """Only the words that have to be 0 are cleared: with NaN in the others, bits are the same."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(threads, "wanted", lambda x: 2)
    scores = torch.randn(*shape, dtype=torch.float64).to(getattr(torch, dtype))
    wanted = torch.zeros(shape, dtype=torch.bool)
    wanted[..., :3] = True

    def answers():
        x = scores.detach().requires_grad_()
        losses = kofn.losses.topk_loss(x, wanted)
        found = [kofn.soft_topk_threshold(x, 5), kofn.entmax(x), losses, kofn.log_soft_topk(x, 5)]
        return found, torch.autograd.grad(sum(a.float().square().sum() for a in found), x)

    first, slope = answers()
    monkeypatch.setattr(np, "empty", lambda n: np.full(n, np.nan))
    again, slope_again = answers()
    for one, other in zip([*first, *slope], [*again, *slope_again], strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)
