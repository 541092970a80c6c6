"""Loops whose length depends on values, where these cannot be read."""

import contextlib

import pytest
import torch

import kofn
from kofn import metrics, nn
from kofn.arrays.torch import state

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(1, 3, 4)
CALLS = {
    "soft_assignment": lambda: kofn.soft_assignment(X, 2),
    "soft_assignment_prices": lambda: kofn.soft_assignment_prices(X, 2),
    "temperature_for": lambda: metrics.temperature_for(X, 2, support=3.0),
    "soft_knapsack": lambda: kofn.soft_knapsack(X, torch.ones_like(X), 1.5),
    "soft_topk": lambda: kofn.soft_topk(X, 2),
    "segment_soft_topk": lambda: kofn.segment_soft_topk(X[0, 0], 2, ptr=torch.tensor([0, 1, 4])),
    "TopKRouter.forward": lambda: nn.TopKRouter(4, 4, 2, selection="assignment").double()(X[0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_search_that_is_captured_in_a_cuda_graph_is_refused_by_name(name, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    CALLS[name]()
    monkeypatch.setattr(state, "is_captured", lambda x: True)
    short = name.rpartition(".")[2]
    with pytest.raises(RuntimeError, match=rf"^[\w.]*{short} cannot be captured in a CUDA graph"):
        CALLS[name]()


def test_what_is_captured(monkeypatch):
    assert not state.is_captured(X)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not state.is_captured(X)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    assert state.is_captured(X)


def test_what_is_recorded_in_another_thread_stays_on_the_streams_of_this_one(monkeypatch):
    seen = []
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "current_device", lambda: 1)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(cuda, "set_stream", seen.append)

    @contextlib.contextmanager
    def device(number):
        seen.append(number)
        yield

    monkeypatch.setattr(cuda, "device", device)
    assert state.recording(lambda x: x + 1, 2) == 3
    assert seen == ["stream of 0", "stream of 1", 1]
