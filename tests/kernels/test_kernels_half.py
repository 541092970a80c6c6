"""Rows of float16 and bfloat16 in kernels: the bits of a cast before and after, not its memory."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import kofn
from kofn import losses
from kofn.arrays.kinds import deleted
from kofn.kernels.cpu.runtime import half, native
from kofn.links import table
from support import LINKS

INF, NAN = math.inf, math.nan
DTYPES = [torch.float16, torch.bfloat16]
of_dtypes = pytest.mark.parametrize("dtype", DTYPES)


def bits(x):
    """The bits of numbers, one pattern for all NaN, and one for both zeros."""
    x = x.detach().clone()
    x[x.isnan()] = NAN
    x[x == 0] = 0.0
    return x.view({2: torch.int16, 4: torch.int32}[x.itemsize])


def converted(name, numbers, into, scores=0.0):
    """What the compiled conversion makes of a tensor."""
    kind = [torch.float16, torch.bfloat16].index(numbers.dtype if name == "widen" else into)
    found = torch.empty(numbers.shape, dtype=into)
    base, place = numbers.data_ptr(), found.data_ptr()
    function = native.function(half.conversion(name, kind))
    function(base, 0, 0, numbers.numel(), 0, scores, float(base), float(place), 0.0, 0.0)
    return found


@of_dtypes
def test_every_number_of_16_bits_is_converted_as_by_pytorch(dtype):
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    wide = converted("widen", every, torch.float32)
    assert torch.equal(bits(wide), bits(every.float()))
    again = converted("narrow", wide, dtype)
    known = ~every.isnan()
    assert torch.equal(again.view(torch.int16)[known], every.view(torch.int16)[known])
    assert torch.equal(again.isnan(), ~known)
    playing = converted("widen", every, torch.float32, scores=1.0)
    assert torch.equal(bits(playing), bits(every.float().masked_fill(deleted(every), -INF)))


@of_dtypes
def test_single_precision_is_rounded_as_by_pytorch(dtype):
    """Each number of 16 bits, the middle to the next, their neighbours, and patterns drawn."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).float()
    step = 1 << (15 if dtype == torch.bfloat16 else 12)
    near = [every.view(torch.int32) + step + i for i in (-1, 0, 1)]
    small = torch.arange(1 << 12).float() * 2.0**-26  # the middles of float16's subnormal numbers
    drawn = torch.from_numpy(
        np.random.default_rng(0).integers(-(2**31), 2**31, 1 << 17).astype(np.int32)
    )
    for numbers in (*(pattern.view(torch.float32) for pattern in (*near, drawn)), small, -small):
        assert torch.equal(bits(converted("narrow", numbers, dtype)), bits(numbers.to(dtype)))


def rows(dtype, n, count, seed=0):
    """Rows with deleted scores, ±inf and NaN among ordinary ones, and one that is far spread."""
    x = torch.randn(count, n, generator=torch.Generator().manual_seed(seed)).mul(3).to(dtype)
    least = torch.finfo(dtype).min
    for row, scores in enumerate([(-INF, least, least / 2), (INF,), (NAN,), (INF, INF, NAN)]):
        for i, score in enumerate(scores):
            if count > 2 and i < n:
                x[(row + 2) % count, i] = score
    if count > 6:
        x[6] *= 1e4 if dtype == torch.float16 else 1e30
        x[7 % count] = -INF
    return x


def cast_outside(function, x):
    """What a map made of half precision before kernels took it: a cast before and after."""
    return function(torch.where(deleted(x), -INF, x).float()).to(x.dtype)


def assert_as_cast(function, x, others=(), cast=cast_outside):
    """Values, and the gradients of the scores and of `others`, are those of a cast outside."""
    x = x.detach().requires_grad_()
    found, expected = function(x), cast(function, x)
    assert found.dtype == expected.dtype
    assert torch.equal(bits(found), bits(expected))
    g = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(found.dtype)
    slopes, wanted = (torch.autograd.grad(p, (x, *others), g) for p in (found, expected))
    for slope, want in zip(slopes, wanted, strict=True):
        assert slope.dtype == want.dtype
        assert torch.equal(bits(slope), bits(want))


@of_dtypes
@pytest.mark.parametrize("n", [1, 40, 129, 1000])
def test_weights_are_those_of_a_cast(dtype, n):
    x, temperature = rows(dtype, n, 9), torch.linspace(0.5, 2, 9, requires_grad=True)
    k = torch.full((9,), n / 3, requires_grad=True)
    assert_as_cast(lambda x: kofn.soft_topk(x, k, temperature=temperature), x, (k, temperature))
    assert_as_cast(lambda x: kofn.entmax(x, temperature=0.1), x)


@pytest.mark.full
@of_dtypes
@pytest.mark.parametrize("link", LINKS)
def test_weights_of_any_rows_are_those_of_a_cast(dtype, link):
    sizes, temperatures = (2, 3, 16, 17, 64, 128, 200, 1024, 5000), (1e-4, 0.3, 1.0, 50.0, 1e6)
    links = [table.resolve(link)]
    links += [kofn.links.entmax(a) for a in (1.0, 1.3, 2.0)] if link == "entmax" else []
    for n, t, one in itertools.product(sizes, temperatures, links):
        for k in (0, 1, 0.5, n / 3, n // 2, n):
            x = rows(dtype, n, 20, seed=n)
            assert_as_cast(lambda x: kofn.soft_topk(x, k, link=one, temperature=t), x)  # noqa: B023
        mask = torch.rand(20, n) > 0.3
        assert_as_cast(lambda x: kofn.soft_topk(x, 1, link=one, mask=mask), x)  # noqa: B023


@of_dtypes
@pytest.mark.parametrize("n", [1, 60, 3000, 70_000])
def test_logarithms_are_those_of_a_cast(dtype, n):
    x, temperature = rows(dtype, n, 9), torch.linspace(0.5, 2, 9, requires_grad=True)
    options = {"temperature": temperature}
    assert_as_cast(lambda x: kofn.log_soft_topk(x, n / 3, **options), x, (temperature,))
    assert_as_cast(kofn.log_entmax, x)
    k = torch.full((9,), n / 2, requires_grad=True)  # the array code, which has its gradient
    assert_as_cast(lambda x: kofn.log_soft_topk(x, k, link="laplace"), x, (k,))


def losses_of(x, n, temperature):
    """Losses of labels and of weights, of several dtypes, as functions of scores."""
    labels = torch.arange(len(x)) * 7 % n
    hot, soft = torch.rand(x.shape) < 3 / n, torch.rand(x.shape)
    options = {"temperature": temperature, "reduction": "none"}
    for target in (labels, hot, hot.to(x.dtype), soft, soft.to(x.dtype)):
        yield lambda x, t=target: losses.topk_loss(x, t, **options)
        yield lambda x, t=target: losses.sparsemax_loss(x, t, **options)
    yield lambda x: losses.topk_loss(x, hot, link="normal", **options)
    yield lambda x: losses.softmax_loss(x, soft, **options)
    ignored = labels.clone()
    ignored[1] = -100
    for some in ({}, {"weight": torch.rand(n)}, {"label_smoothing": 0.1}):
        yield lambda x, o=some: losses.softmax_loss(x, ignored, **options, **o)
        yield lambda x, o=some: losses.entmax_loss(x, ignored, **options, **o)
    yield lambda x: losses.sparse_softmax_loss(x, labels, k=min(n, 5), **options)
    yield lambda x: losses.sparse_softmax_loss(x, labels, p=0.8, **options)
    yield lambda x: losses.accuracy_loss(x, ignored, **options)


@of_dtypes
@pytest.mark.parametrize("n", [2, 60, 3000, pytest.param(70_000, marks=pytest.mark.full)])
def test_losses_are_those_of_a_cast(dtype, n):
    def cast(function, x):
        return function(torch.where(deleted(x), -INF, x).float())

    x, temperature = rows(dtype, n, 9), torch.linspace(0.5, 2, 9, requires_grad=True)
    for loss in losses_of(x, n, temperature):
        assert_as_cast(loss, x, (temperature,), cast)
    for loss in losses_of(x, n, 1.5):
        assert_as_cast(loss, x, (), cast)
        with torch.no_grad():
            assert torch.equal(bits(loss(x)), bits(cast(loss, x)))


@of_dtypes
@pytest.mark.parametrize("name", ["accuracy_loss", "topk_gates"])
def test_what_needs_weights_in_single_precision_keeps_scores_as_they_are(dtype, name):
    x, kept = torch.randn(9, 300, dtype=dtype).requires_grad_(), []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        if name == "topk_gates":
            kofn.topk_gates(x, 3)
        else:
            losses.accuracy_loss(x, torch.arange(9), link="logistic")
    of_scores = [each.dtype for each in kept if torch.equal(each.double(), x.double())]
    assert of_scores == [dtype]


@of_dtypes
@pytest.mark.parametrize("n", [2, 60, 3000])
def test_gates_are_those_of_a_cast(dtype, n):
    x, temperature = rows(dtype, n, 9), torch.linspace(0.5, 2, 9, requires_grad=True)
    bias = torch.linspace(-1, 1, n)
    for options in ({"temperature": temperature}, {"bias": bias, "normalize": n > 2}):
        learned = tuple(o for o in options.values() if o is temperature)

        def gates(x, options=options):
            return kofn.topk_gates(x, 2, **options)[0]

        assert_as_cast(gates, x, learned)
        wide = torch.where(deleted(x), -INF, x).float()
        assert torch.equal(*(kofn.topk_gates(a, 2, **options)[1] for a in (x, wide)))


@of_dtypes
@pytest.mark.parametrize("n", [1, 60, 3000, 70_000])
def test_hard_choices_are_those_of_a_cast(dtype, n):
    x, temperature = rows(dtype, n, 9), torch.linspace(0.5, 2, 9, requires_grad=True)
    options = {"temperature": temperature, "hard": True}
    assert_as_cast(lambda x: kofn.soft_topk(x, n / 3, **options), x, (temperature,))
    for k in (min(n, 2), n / 7, torch.linspace(0, n, 9), torch.full((9,), NAN)):
        found = kofn.hard_topk(x, k)
        expected = kofn.hard_topk(torch.where(deleted(x), -INF, x).float(), k)
        assert torch.equal(bits(found), bits(expected.to(dtype)))


@pytest.mark.parametrize("threads", [1, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize("shape", [(1, 70_000), (3, 70_001), (300, 129)])
def test_weights_by_several_threads(shape, threads):
    x, before = rows(torch.bfloat16, shape[1], shape[0]), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert_as_cast(lambda x: kofn.soft_topk(x, 50), x)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("weights", ["entmax", "soft_topk"])
def test_attention_is_that_of_cast_scores(weights):
    q, k, v = (torch.randn(2, 2, 40, 8).bfloat16() for _ in range(3))
    wide, few = (q @ k.mT).float(), 8 if weights == "soft_topk" else 1
    t = math.sqrt(8)
    shares = (
        kofn.entmax(wide, temperature=t) if few == 1 else kofn.soft_topk(wide, few, temperature=t)
    )
    expected = shares.bfloat16() @ v / few
    found = kofn.nn.sparse_attention(q, k, v, weights=weights)
    assert torch.equal(found, expected)


def test_arrays_of_any_layout():
    x = rows(torch.bfloat16, 60, 8).reshape(2, 4, 60)
    assert_as_cast(lambda x: kofn.soft_topk(x, 1, dim=1), x)
    assert_as_cast(lambda x: kofn.softmax(x.mT), x)
    assert_as_cast(kofn.softmax, torch.ones(0, 5).bfloat16())
    assert_as_cast(kofn.softmax, torch.ones(5).bfloat16())
    assert kofn.softmax(torch.ones(3, 0).bfloat16()).shape == (3, 0)
    y = np.array([[1.0, -60000.0, np.nan, 2.0], [3.0, 4.0, np.inf, -np.inf]], np.float16)
    with np.errstate(invalid="ignore"):
        wide = np.where(y <= -65504 / 2, -np.inf, y).astype(np.float32)
    expected = kofn.soft_topk(wide, 2).astype(np.float16)
    for same in (y, y.astype(">f2"), np.asfortranarray(y)):
        np.testing.assert_array_equal(kofn.soft_topk(same, 2), expected)


def test_second_derivatives_are_those_of_a_cast_but_for_a_rounding():
    """What comes by the slope and by the weights is rounded before it is added."""
    x = torch.randn(3, 12).bfloat16().requires_grad_()

    def curved(p):
        (slope,) = torch.autograd.grad(p.float().pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.float().sin().sum(), x)[0]

    for function in (lambda x: kofn.soft_topk(x, 4), kofn.softmax):
        expected = curved(cast_outside(function, x))
        most = expected.abs().max().item()
        torch.testing.assert_close(curved(function(x)), expected, rtol=0, atol=2.0**-7 * most)


def most_held(function):
    """The most bytes that PyTorch and NumPy hold at once while they call it, above those before."""
    tracemalloc.start()
    function()
    others = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        function()
    held = most = 0
    events = (e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]")
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most + others


@of_dtypes
@pytest.mark.parametrize("link", ["logistic", "linear"])
def test_no_more_memory_than_softmax_takes(dtype, link):
    """Casts of whole tensors took five times as much."""
    x = torch.randn(512, 2048).to(dtype).requires_grad_()
    g = torch.randn(512, 2048).to(dtype)

    def run(function):
        function(x).backward(g)
        x.grad = None

    def topk(x):
        return kofn.soft_topk(x, 64, link=link)

    def softmax(x):
        return torch.softmax(x, -1)

    run(topk), run(softmax)
    with torch.no_grad():
        topk(x)
        assert most_held(lambda: topk(x)) <= 1.1 * most_held(lambda: softmax(x))
    assert most_held(lambda: run(topk)) <= 1.1 * most_held(lambda: run(softmax))


@of_dtypes
def test_losses_take_little_more_memory_than_cross_entropy(dtype):
    """A cast outside took twice as much."""
    x, labels = torch.randn(512, 2048).to(dtype).requires_grad_(), torch.arange(512)
    hot = torch.rand(512, 2048) < 0.01

    def run(function):
        function(x).backward()
        x.grad = None

    def held(function):
        run(function)
        return most_held(lambda: run(function))

    most = held(lambda x: torch.nn.functional.cross_entropy(x, labels))
    assert held(lambda x: losses.softmax_loss(x, labels)) <= 1.1 * most
    assert held(lambda x: losses.entmax_loss(x, labels)) <= 1.1 * most
    assert held(lambda x: losses.topk_loss(x, hot)) <= 1.1 * most
