"""Threads of the kernels for rows, and callers who are gone before these have finished."""

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import kofn
from kofn.kernels.cpu.runtime import layout, native, openmp
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
pool.offer([(asleep, (200_000,))], None)
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
    """It has none of OpenMP's threads; an operation of PyTorch's that calls them never ends there,
    so the child compares by NumPy.
    """
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
    os._exit(0 if np.array_equal(soft_topk(x, 7).numpy(), wanted.numpy()) else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(soft_topk(x, 7), wanted)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.fixture
def three_threads():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


SHARED = {
    "short rows": lambda x: kofn.soft_topk(x.reshape(-1, 30), 4),
    "rows": lambda x: kofn.soft_topk(x.reshape(-1, 3000), 40),
    "a row in parts": lambda x: kofn.soft_topk(x, 5000),
    "hard rows": lambda x: kofn.hard_topk(x.reshape(-1, 3000), 40),
    "sets": lambda x: kofn.sparse_softmax(x.reshape(-1, 3000), k=40, p=0.9),
    "subsets": lambda x: kofn.KSubset(x.reshape(-1, 1000), 5).marginals(),
    "noise": lambda x: kofn.perturbed_argmax(x.reshape(-1, 300), noise="normal"),
    "losses": lambda x: kofn.losses.sparsemax_loss(x.reshape(-1, 3000), x.reshape(-1, 3000) * 0),
}
"""A call of each kind of work that threads share."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", SHARED)
def test_the_threads_of_openmp_give_the_bits_of_others(three_threads, monkeypatch, kind, dtype):
    torch = pytest.importorskip("torch")
    if openmp.parallel() is None:
        pytest.skip("PyTorch has no OpenMP here")
    regions = []

    def noted(region, works):
        regions.append(len(works))
        work(region, works)

    work = openmp.work
    monkeypatch.setattr(openmp, "work", noted)
    x = torch.randn(150_000, generator=torch.Generator().manual_seed(1))
    x = x.to(getattr(torch, dtype)).requires_grad_()

    def answers():
        found = SHARED[kind](x)
        if not found.requires_grad:
            return (found,)
        return found, *torch.autograd.grad(found.float().square().sum(), x)

    together = answers()
    assert set(regions) == {3}
    monkeypatch.setattr(openmp, "parallel", lambda: None)
    regions.clear()
    assert all(map(torch.equal, together, answers()))
    assert not regions


def test_openmp_serves_tensors_alone(three_threads, monkeypatch):
    """NumPy's arrays have threads of their own number, and a child that was forked none at all."""
    monkeypatch.setattr(openmp, "work", None)
    monkeypatch.setenv("KOFN_NUM_THREADS", "3")
    assert kofn.soft_topk(np.ones((50, 3000)), 2).sum() == pytest.approx(100)
    monkeypatch.setattr(openmp, "_is_forked", True)
    assert openmp.parallel() is None


@pytest.mark.skipif(sys.platform != "linux", reason="the wheels for Linux are known to have it")
def test_openmp_is_found_by_the_name_of_pytorchs_library():
    """A function of OpenMP that PyTorch itself calls, not of another copy in the process."""
    torch = pytest.importorskip("torch")
    if "OpenMP" not in torch.__config__.parallel_info():
        pytest.skip("this PyTorch has threads of another kind")
    found = ctypes.cast(openmp.parallel(), ctypes.c_void_p).value
    with open("/proc/self/maps") as maps:
        places = [line.split() for line in maps]
    (where,) = (
        each[-1] for each in places
        if int(each[0].split("-")[0], 16) <= found < int(each[0].split("-")[1], 16)
    )  # fmt: skip
    assert "omp" in Path(where).name
    assert Path(torch.__file__).parent in Path(where).parents or "torch" in where


def test_more_places_than_threads_and_fewer(three_threads):
    """Whoever comes too late finds no place, and a region of one thread does the leader's work."""
    region = openmp.parallel()
    if region is None:
        pytest.skip("PyTorch has no OpenMP here")
    asleep = ctypes.CDLL(None).usleep
    asleep.address = ctypes.cast(asleep, ctypes.c_void_p).value
    for works in (1, 2, 3, 5):
        openmp.work(region, [(asleep, (10, 0, 0.0, True)), *[(asleep, (10,))] * (works - 1)])


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
