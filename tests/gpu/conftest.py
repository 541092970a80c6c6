"""Tests on a GPU: `make gpu` runs them, and no other command does unless a GPU is there.

KOFN_GPU=cpu has the CPU stand in for the device, its tensors served by the GPU's kernels in
Triton's interpreter if TRITON_INTERPRET=1: so every line here has run before a GPU is at hand.
What is timed or captured needs the device, and is skipped then.
"""

import sys
from pathlib import Path

import pytest
import torch

for folder in (Path(__file__).parent, Path(__file__).resolve().parents[2]):
    sys.path.insert(0, str(folder))

from asked import INTERPRETED, REHEARSED, WANTED  # noqa: E402

if not (REHEARSED or torch.cuda.is_available()):
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)
            if INTERPRETED:  # NumPy warns where it divides by 0, as the plan is
                item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
            if REHEARSED and item.get_closest_marker("device") is not None:
                item.add_marker(pytest.mark.skip(reason="needs the device itself"))


@pytest.fixture(scope="session")
def device():
    return torch.device("cuda", torch.cuda.current_device()) if WANTED == "cuda" else WANTED


@pytest.fixture(scope="session", autouse=True)
def _kernels_of_the_gpu():
    """In a rehearsal, CPU tensors are served by the GPU's kernels; arguments alone say float64."""
    if not (REHEARSED and INTERPRETED):
        yield
        return
    from benchmarks.gpu import stand_in

    with stand_in.for_device():
        yield


@pytest.fixture(autouse=True)
def _memory_that_others_left():
    """It holds NaN, so what is read before it is written does, too. Errors show in their test."""
    torch.manual_seed(0)
    if not REHEARSED:
        torch.cuda.synchronize()
        left = [
            torch.full((size,), torch.nan, device="cuda") for size in (128, 1 << 14, 1 << 18) * 8
        ]
        left.append(torch.full((1 << 24,), torch.nan, device="cuda"))
        del left
    yield
    if not REHEARSED:
        torch.cuda.synchronize()


@pytest.fixture(autouse=True, scope="session")
def _poisoned():
    """What a kernel leaves unwritten holds NaN."""
    from kofn.kernels.gpu.rows import launch

    def empty(like, shape, dtype=None):
        made = like.new_empty(shape, dtype=dtype)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "empty", empty)
        yield
