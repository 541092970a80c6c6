"""Arguments are checked once in a call, and the framework of an array is found out once."""

import functools
import gc
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import kofn
from kofn.arrays import checks, form, kinds
from kofn.kernels.cpu.runtime.memory import FEW, memory_of, per_row
from kofn.losses import topk_loss
from kofn.rows.given import without_deleted

QUESTIONS = ("is_torch", "is_jax", "is_numpy", "framework", "namespace")
CHECKS = ("check_scores", "check_dim")
SCORES = torch.tensor([[2.0, 1.0, 0.5, -1.0], [0.0, 3.0, 1.0, 2.0]])


@pytest.fixture(autouse=True)
def _kernels_serve(monkeypatch):
    monkeypatch.delenv("KOFN_KERNELS", raising=False)
    monkeypatch.setattr(
        "kofn.adapters.short.answer", lambda *_, **__: None
    )  # which asks for nothing again


def calls(function):
    """How often a call asks for a framework, not counting questions that a question asks."""
    asks = {getattr(kinds, name).__code__ for name in QUESTIONS}
    named = {getattr(checks, name).__code__: name for name in CHECKS}
    found = Counter()

    def count(frame, event, _):
        if event == "call" and frame.f_code in asks and frame.f_back.f_code not in asks:
            found["framework"] += 1
        elif event == "call" and frame.f_code in named:
            found[named[frame.f_code]] += 1

    function()  # what is imported and compiled once is no part of it
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("learned", [False, True])
def test_an_eager_call_asks_for_the_framework_once(learned):
    x = SCORES.clone().requires_grad_(learned)
    for map_of in (
        lambda: kofn.soft_topk(x, 2),
        lambda: kofn.softmax(x),
        lambda: kofn.sparsemax(x),
    ):
        assert calls(map_of) == {"framework": 1, "check_scores": 1, "check_dim": 1}


def frames(function):
    """The functions of this package that a call runs."""
    home, found = str(Path(kofn.__file__).parent), []

    def count(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(home):
            found.append(frame.f_code.co_qualname)

    function()
    # What is thrown away in between may call functions, too: hooks that earlier tests have left.
    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


def test_short_rows_take_few_calls():
    """They are most of the time of a short row."""
    x = SCORES.clone().requires_grad_()
    learned = kofn.soft_topk(x, 2)
    back = functools.partial(learned.backward, torch.ones_like(x), retain_graph=True)
    for function, most in (
        (lambda: kofn.soft_topk(SCORES, 2), 50),
        (lambda: kofn.soft_topk(x, 2), 57),
        (back, 15),
    ):
        found = frames(function)
        assert len(found) <= most, found


@pytest.mark.parametrize("rows", [FEW, FEW + 1])
def test_numbers_for_all_rows_are_not_written_over(rows):
    x = torch.linspace(-1, 1, 4 * rows).reshape(rows, 4).requires_grad_()
    first, again = (torch.autograd.grad(kofn.soft_topk(x, 2).square().sum(), x)[0] for _ in "ab")
    assert torch.equal(first, again)
    numbers = per_row(2.0, memory_of(x), rows, 4)[0]
    assert list(numbers) == [2.0] * rows


def test_a_call_with_numpy_asks_for_the_framework_rarely():
    assert calls(lambda: kofn.soft_topk(SCORES.numpy(), 2))["framework"] <= 3


@pytest.mark.parametrize("dim", [0, 1])
def test_every_map_and_loss_checks_its_scores_once(dim):
    x, target = SCORES, (SCORES > 0.7).float()
    for function in (
        lambda: kofn.sparsemax(x, dim=dim),
        lambda: kofn.soft_topk_sum(x, 1, dim=dim),
        lambda: kofn.soft_topk_threshold(x, 1, dim=dim),
        lambda: kofn.topk_gates(x, 1, dim=dim),
        lambda: kofn.hard_topk(x, 1, dim=dim),
        lambda: kofn.log_entmax(x, dim=dim),
        lambda: kofn.sparse_softmax(x, k=1, dim=dim),
        lambda: kofn.perturbed_argmax(x, dim=dim),
        lambda: kofn.metrics.entropy(x.abs(), dim=dim),
        lambda: kofn.classic.ones_and_softmax(x, 1, dim=dim),
        lambda: topk_loss(x, target, dim=dim),
    ):
        found = calls(function)
        assert (found["check_scores"], found["check_dim"]) == (1, 1)


def test_the_form_of_an_array_brings_rows_there_and_back():
    x = np.arange(6, dtype=">f4").reshape(2, 3)
    shape = form.form_of(x, 0)
    assert (shape.kind, shape.dim, shape.n, shape.batch) == ("numpy", -2, 2, (3,))
    rows = shape.rows(x)
    assert rows.shape == (3, 2)
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous
    back = shape.restored(rows)
    assert back.dtype == x.dtype
    assert np.array_equal(back, x)
    none = form.form_of(torch.zeros(2, 0, dtype=torch.bfloat16), -1)
    assert none.entries(torch.zeros(2, 0)).shape == (2, 1)
    assert none.restored(torch.zeros(2, 1)).shape == (2, 0)


def test_numbers_for_k_and_temperature_are_what_arrays_of_them_are():
    """Kernels take numbers as they are; derivatives come to arrays only."""
    v = torch.tensor([[0.3, -1.0, 0.2, 2.0], [1.0, 0.4, -0.7, 0.1]])
    for dtype in (torch.float32, torch.float64):
        x = SCORES.to(dtype).requires_grad_()
        k, t = (torch.full((2,), number, dtype=dtype, requires_grad=True) for number in (1.5, 0.7))
        expected = kofn.soft_topk(x, k, temperature=t)
        in_x, in_k, in_t = torch.autograd.grad(expected, (x, k, t), v.to(dtype))
        for count, scale, learned, wanted in (
            (1.5, 0.7, (x,), (in_x,)),
            (k, 0.7, (x, k), (in_x, in_k)),
            (1.5, t, (x, t), (in_x, in_t)),
            (1.5, t, (t,), (in_t,)),
        ):
            p = kofn.soft_topk(x, count, temperature=scale)
            assert torch.equal(p, expected)
            found = torch.autograd.grad(p, learned, v.to(dtype), create_graph=False)
            assert all(map(torch.equal, found, wanted))
        values = [kofn.soft_topk_sum(x, *pair) for pair in ((k,), (1.5,))]
        slopes = [torch.autograd.grad(value.sum(), x)[0] for value in values]
        assert torch.equal(*values)
        assert torch.equal(*slopes)


@pytest.mark.full
@pytest.mark.parametrize("first", ["torch, kofn", "kofn, torch"])
def test_the_first_call_of_a_process_may_be_a_compiled_one(first):
    """The ordinary run has package/test_package.py's, which loads what is loaded late as well."""
    code = f"""
import {first}
torch.set_num_threads(1)
of = torch.compile(
    lambda x: kofn.soft_topk(x, 2) + kofn.KSubset(x, 2).entropy(), fullgraph=True, backend="eager"
)
x = torch.tensor([2.0, 1.0, 0.5, -1.0])
found, expected = of(x), kofn.soft_topk(x, 2) + kofn.KSubset(x, 2).entropy()
assert torch.allclose(found, expected, atol=1e-5)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


FIRST = {  # an array per row, whose size is a symbol
    "soft_topk": "kofn.soft_topk(x, 2, temperature=t)",
    "hard": "kofn.soft_topk(x, 2, temperature=t, hard=True)",
}


@pytest.mark.full
@pytest.mark.parametrize("name", FIRST)
def test_the_first_call_may_be_one_of_sizes_that_are_symbols(name):
    """PyTorch goes over it twice, and may not find that the first time has changed anything."""
    code = f"""
import kofn, torch
torch.set_num_threads(1)
def call(x, t):
    return {FIRST[name]}
of = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
x, t = torch.randn(5, 9), torch.rand(5) + 0.5
torch.testing.assert_close(of(x, t), call(x, t))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_scores_are_copied_only_where_some_may_be_deleted(make):
    plain, least = make([[2.0, 1.0], [-1.0, 0.5]]), np.finfo(np.float64).min
    assert without_deleted(plain) is plain
    for other in (np.nan, 1.0):
        found = without_deleted(make([[least, 1.0], [other, -np.inf]]))
        np.testing.assert_array_equal(found, [[-np.inf, 1.0], [other, -np.inf]])
    assert tuple(without_deleted(make(np.empty((0, 3)))).shape) == (0, 3)
