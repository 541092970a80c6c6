"""Numbers beside tensors of a GPU: made once, with the answers that numbers have."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kofn.arrays.kinds import namespace, scalar
from kofn.arrays.torch import kept as of_kept
from kofn.arrays.torch import private
from kofn.arrays.torch.kept import kept

compat = pytest.importorskip("array_api_compat.torch")
X = torch.tensor([-1.0, 0.0, 2.0])
NUMBERS = (0, 1, 0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 1e300)


@pytest.fixture
def on_gpu(monkeypatch):
    """CPU tensors take the road of a GPU's; nothing is kept from other tests."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    monkeypatch.setattr(of_kept, "_KEPT", {})


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, f, types, args=(), kwargs=None):
        self.found.append(f.overloadpacket.__name__)
        return f(*args, **(kwargs or {}))


def bits(x):
    return x.double().view(torch.int64).tolist()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64"])
@pytest.mark.parametrize("number", NUMBERS)
def test_where_has_the_same_bits(number, dtype, on_gpu):
    x = X.to(getattr(torch, dtype))
    flags, xp = x > 0, namespace(x)
    for given in ((x, number), (number, x)):
        try:
            answer = compat.where(flags, *given)
        except RuntimeError:
            continue  # of a number that the dtype does not have
        found = xp.where(flags, *given)
        assert found.dtype == answer.dtype
        assert bits(found) == bits(answer)


def test_numbers_are_made_once(on_gpu, monkeypatch):
    xp = namespace(X)
    assert not hasattr(xp, "classes")  # which has every name
    xp.where(X > 0, X, 0.0)  # made here
    monkeypatch.setattr(private, "_dispatch_modes", lambda: 0)
    with Names() as names:
        flags = X > 0
        xp.where(flags, X, 0.0)
        xp.where(flags, 0.0, X)
        scalar(X, 0.0)
    assert names.found == ["gt", "where", "where"]
    for number in NUMBERS[2:]:
        assert kept(X, number) is kept(X, float(str(number)))
    assert not kept(X, 0.0).signbit()
    assert kept(X, -0.0).signbit()
    with torch.inference_mode():
        assert not kept(X, 17.0).is_inference()


def test_gradients_are_the_same(on_gpu):
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(namespace(x).where(x > 0, x, 0.0).sum(), x)
    assert found.tolist() == [0.0, 0.0, 1.0]


def test_no_more_than_some_are_kept(on_gpu, monkeypatch):
    monkeypatch.setattr(of_kept, "MOST", 3)
    found = [kept(X, float(number)) for number in range(5)]
    assert [one is None for one in found] == [False] * 3 + [True] * 2
    assert namespace(X).where(X > 0, X, 4.0).tolist() == [4.0, 4.0, 2.0]


@pytest.mark.parametrize("busy", ["is_current_stream_capturing", "get_sync_debug_mode"])
def test_none_is_made_where_it_would_be_lost_or_waited_for(busy, on_gpu, monkeypatch):
    old = kept(X, 1.0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name in ("is_current_stream_capturing", "get_sync_debug_mode"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: int(name == busy))
    assert kept(X, 1.0) is old
    assert kept(X, 2.0) is None
    assert scalar(X, 2.0).item() == 2.0


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_none_is_used_where_something_traces(on_gpu):
    from torch._subclasses.fake_tensor import FakeTensorMode

    kept(X, 0.0)
    seen = []

    def function(x):
        seen.append(kept(x, 0.0))
        return namespace(x).where(x > 0, x, 0.0)

    torch.func.vmap(function)(X)
    torch.func.grad(lambda x: function(x).sum())(X)
    torch.jit.trace(function, X, check_trace=False)
    with FakeTensorMode() as mode:
        function(mode.from_tensor(X))
    assert len(seen) >= 4
    assert set(seen) == {None}
    assert torch.compile(function, backend="eager")(X).tolist() == [0.0, 0.0, 2.0]
