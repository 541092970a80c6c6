"""Every public function on the device: answers and gradients by float64 on the CPU; no waits."""

import pytest
import torch

from asked import INTERPRETED, WANTED
from benchmarks.gpu.functions import FUNCTIONS, Draw
from truth import DTYPES, GRADIENT, WEIGHTS, answers, array_code, off, off_in_norm

SHAPES = ((8, 24),) if INTERPRETED else ((64, 64), (6, 1000))
LEARNED = [one for one in FUNCTIONS if one.learns and not one.random]

# Where 16 bits of the scores decide more than a last place of the answer, or rounding is that of
# PyTorch's own matrix products.
LOOSE = ("Router", "SAE", "attention", "perturbed", "assignment", "box_section", "KSubset", "alpha")


def each(functions, halves=True):
    return pytest.mark.parametrize(
        ("function", "dtype"),
        [
            pytest.param(one, dtype, id=f"{one.name}-{str(dtype)[6:]}")
            for one in functions
            for dtype in DTYPES
            if dtype == torch.float32 or (halves and one.halves)
        ],
    )


@each([one for one in FUNCTIONS if not one.random])
def test_answers_and_gradients(function, dtype, device):
    order, wrong = int(function.learns), []
    loose = 20 if any(word in function.name for word in LOOSE) else 2
    for rows, n in SHAPES:
        call, leaves = function.make(Draw(device, dtype, rows, n))
        got = answers(call, leaves, order, learned=function.learns)
        exact = Draw("cpu", torch.float64, rows, n, rounded=dtype)
        with array_code():
            wanted = answers(*function.make(exact), order, learned=function.learns)
        assert [one.shape for one in got] == [one.shape for one in wanted]
        if function.exact:
            assert torch.equal(got[0], wanted[0].to(got[0].dtype))
        if function.name == "log_entmax":  # p is a square, so that √p is as θ, and log p is not
            got[0], wanted[0] = (2 * torch.exp(one[0] / 2) for one in (got, wanted))
        error = off(got[0], wanted[0])
        if "Router" in function.name or "SAE" in function.name or dtype != torch.float32:
            error = off_in_norm(got[0], wanted[0], 0.8)
        if not error <= loose * WEIGHTS[dtype]:
            wrong.append(f"{rows} × {n}: off by {error:.1e}")
        for place, (ours, theirs) in enumerate(zip(got[1:], wanted[1:], strict=True)):
            # Among a thousand scores of 16 bits, their rounding decides which sigmoids are taken.
            if dtype != torch.float32 and n == 1000 and function.name == "TopKRouter, sigmoid":
                continue
            error = off_in_norm(ours, theirs, 0.8)
            if not error <= loose * GRADIENT[dtype]:
                wrong.append(f"{rows} × {n}: gradient {place} off by {error:.1e}")
    assert not wrong


@each(LEARNED, halves=False)
def test_second_derivatives(function, dtype, device):
    rows, n = SHAPES[0] if INTERPRETED else (16, 48)
    call, leaves = function.make(Draw(device, dtype, rows, n))
    got = answers(call, leaves, 2)
    with array_code():
        exact = Draw("cpu", torch.float64, rows, n, rounded=dtype)
        wanted = answers(*function.make(exact), 2)
    assert len(got) == len(wanted)
    for ours, theirs in zip(got[1 + len(leaves) :], wanted[1 + len(leaves) :], strict=True):
        assert off_in_norm(ours, theirs, 0.8) <= 2e-2


@each([one for one in FUNCTIONS if one.random])
def test_samples_are_samples(function, dtype, device):
    call, leaves = function.make(Draw(device, dtype, *SHAPES[0]))
    drawn, again = call(*leaves), call(*leaves)
    assert drawn.device.type == torch.device(WANTED).type
    assert torch.equal(drawn, again)  # a generator with the same seed
    assert drawn.isfinite().all() if drawn.is_floating_point() else True


def ready(function, device, rows=64, n=64, dtype=torch.float32, kept=None):
    """A function of nothing that runs forward and, if it learns, backward; the tensors to watch."""
    call, leaves = function.make(Draw(device, dtype, rows, n, kept=kept))
    leaves = [leaf.requires_grad_(function.learns) for leaf in leaves]

    def run():
        out = call(*leaves)
        if not function.learns:
            return [out]
        return [out, *torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)]

    return run, leaves


WAITS_NOT = [one for one in FUNCTIONS if not one.waits]


@pytest.mark.device
@pytest.mark.parametrize("function", WAITS_NOT, ids=lambda one: one.name)
def test_nothing_waits_for_the_device(function, device):
    run, _ = ready(function, device)
    run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.device
@pytest.mark.parametrize("function", [one for one in FUNCTIONS if one.waits], ids=lambda o: o.name)
def test_what_waits_is_what_the_table_says(function, device):
    """A function that no longer waits leaves the list, in docs/platforms.md, too."""
    run, _ = ready(function, device)
    run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.device
@pytest.mark.parametrize("function", WAITS_NOT, ids=lambda one: one.name)
def test_capture_in_a_graph(function, device):
    """What a replay computes is what the same numbers give in eager mode, to the bit."""
    generator = torch.Generator(device).manual_seed(1)
    run, leaves = ready(function, device, kept=generator)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(), run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        kept = run()
    with torch.no_grad():
        for leaf in leaves:
            if leaf.is_floating_point():
                leaf.mul_(0.75)
    graph.replay()
    torch.cuda.synchronize()
    if function.random:  # a replay goes on in the stream of random numbers
        first = [one.clone() for one in kept if one is not None]
        graph.replay()
        assert not all(torch.equal(*pair) for pair in zip(first, kept, strict=False))
        return
    wanted = run()
    for ours, theirs in zip(kept, wanted, strict=True):
        if ours is not None:
            assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@pytest.mark.device
@pytest.mark.parametrize(
    "function", [one for one in FUNCTIONS if not one.random], ids=lambda one: one.name
)
def test_on_a_stream_of_its_own(function, device):
    """Launches go to the current stream: what a slow stream has not written yet is waited for."""
    run, leaves = ready(function, device)
    wanted = [None if one is None else one.clone() for one in run()]
    torch.cuda.synchronize()
    late = [torch.zeros_like(leaf) for leaf in leaves]
    call, _ = function.make(Draw(device, torch.float32, 64, 64))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        for into, leaf in zip(late, leaves, strict=True):
            into.copy_(leaf.detach())
        late = [one.requires_grad_(function.learns) for one in late]
        out = call(*late)
        got = [out]
        if function.learns:
            got += torch.autograd.grad(out, late, torch.ones_like(out), allow_unused=True)
    stream.synchronize()
    for ours, theirs in zip(got, wanted, strict=True):
        if ours is not None:
            assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


COMPILED = [one for one in FUNCTIONS if not one.random and not one.waits and one.learns]
SOME = (
    *("soft_topk", "entmax", "soft_topk, hard", "topk_gates", "sparsemax_loss", "topk_loss"),
    *("log_soft_topk", "quantile", "soft_topk_sum", "KSubset.marginals", "softmax_loss"),
)


@pytest.mark.device
@pytest.mark.parametrize(
    "function", [one for one in COMPILED if one.name in SOME], ids=lambda one: one.name
)
def test_compiled(function, device):
    call, leaves = function.make(Draw(device, torch.float32, 64, 64))
    leaves = [leaf.requires_grad_() for leaf in leaves]
    torch._dynamo.reset()
    made = torch.compile(call, fullgraph=True)
    for run in (made, call):
        out = run(*leaves)
        found = [out, *torch.autograd.grad(out, leaves, torch.ones_like(out))]
        if run is made:
            compiled = found
    for ours, theirs in zip(compiled, found, strict=True):
        assert off(ours.detach().double().cpu(), theirs.detach().double().cpu()) <= 2e-5


@pytest.mark.parametrize(
    "function", [one for one in FUNCTIONS if not one.random], ids=lambda one: one.name
)
def test_where_the_default_device_is_the_gpu(function, device):
    """Tensors that kofn makes are where the scores are, whatever the default."""
    call, leaves = function.make(Draw(device, torch.float32, *SHAPES[0]))
    before = torch.get_default_device()
    wanted = call(*leaves)
    torch.set_default_device(device)
    try:
        found = call(*leaves)
    finally:
        torch.set_default_device(before)
    assert found.device == wanted.device
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


@pytest.mark.device
@pytest.mark.parametrize(
    "function", [one for one in FUNCTIONS if not one.random], ids=lambda one: one.name
)
def test_tensors_of_the_host_are_served_beside(function, device):
    """With the GPU as the default device, tensors on the CPU get their answers there."""
    with array_code():
        call, leaves = function.make(Draw("cpu", torch.float32, 16, 24))
        wanted = call(*leaves)
        torch.set_default_device(device)
        try:
            found = call(*leaves)
        finally:
            torch.set_default_device("cpu")
    assert found.device.type == "cpu"
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())
