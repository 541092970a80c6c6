"""Schedules: exact at their ends, monotone between, the same for numbers, arrays and compilers."""

import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kofn import schedules, soft_topk

MAKERS = {
    "linear": schedules.linear,
    "cosine": schedules.cosine,
    "exponential": schedules.exponential,
    "until_hard": schedules.until_hard,
}
every_shape = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
numbers = st.floats(1e-12, 1e12)


@every_shape
@given(start=numbers, end=numbers, steps=st.integers(1, 10**9), part=st.floats(0, 1))
def test_ends_are_exact_and_what_is_between_lies_between(make, start, end, steps, part):
    schedule = make(start, end, steps)
    assert schedule(0) == start
    assert schedule(steps) == schedule(steps + 1) == schedule(10 * steps) == end
    low, high = min(start, end), max(start, end)
    assert low * (1 - 1e-12) <= schedule(part * steps) <= high * (1 + 1e-12)
    assert type(schedule(0)) is float


def test_shapes_are_those_of_their_formulas():
    share = np.linspace(0, 1, 11)
    for at in share:
        step = 50 * at
        assert schedules.linear(3.0, -1.0, 50)(step) == pytest.approx(3 - 4 * at, abs=1e-12)
        wave = -1 + 4 * (1 + math.cos(math.pi * at)) / 2
        assert schedules.cosine(3.0, -1.0, 50)(step) == pytest.approx(wave, abs=1e-12)
        assert schedules.exponential(2.0, 0.02, 50)(step) == pytest.approx(2 * 0.01**at)
    assert schedules.constant(0.3)(0) == schedules.constant(0.3)(10**9) == 0.3


@every_shape
def test_arrays_are_answered_by_arrays_of_their_kind(make, framework):
    schedule = make(2.0, 0.1, 7)
    steps = [0.0, 1.0, 2.5, 7.0, 100.0]
    answer = schedule(framework.array(steps))
    assert framework.is_kind(answer)
    expected = [schedule(step) for step in steps]
    np.testing.assert_allclose(framework.numpy(answer), expected, rtol=1e-15)
    assert framework.numpy(schedule(framework.array(-1.0))) == 2.0
    whole = schedule(framework.array(3, "int32"))
    assert float(whole) == pytest.approx(schedule(3), rel=1e-6)


def test_a_compiled_step_may_hold_the_clock():
    cool = schedules.exponential(1.0, 0.1, steps=10)

    @jax.jit
    def choose(scores, step):
        return soft_topk(scores, 2, temperature=cool(step))

    scores = jnp.array([2.0, 1.0, 0.5, -1.0])
    np.testing.assert_allclose(
        choose(scores, 5), soft_topk(scores, 2, temperature=cool(5)), atol=1e-6
    )
    compiled = torch.compile(lambda step: cool(step) * 2, backend="eager", fullgraph=True)
    assert float(compiled(torch.tensor(5))) == pytest.approx(2 * cool(5))


@pytest.mark.parametrize(
    "schedule",
    [schedules.constant(0.5), *(make(1.0, 0.25, 8) for make in MAKERS.values())],
    ids=repr,
)
def test_a_schedule_is_a_value(schedule):
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert [again(step) for step in range(10)] == [schedule(step) for step in range(10)]
    assert eval(repr(schedule)) == schedule
    with pytest.raises(AttributeError):
        schedule.start = 3.0


def test_until_hard_stops_its_clock_while_the_choice_is_hard():
    cool = schedules.until_hard(1.0, 0.01, 10, gap=0.2)
    assert cool.next(3, 0.3) == 4
    assert cool.next(3, 0.2) == cool.next(3, 0.1) == cool.next(3, math.nan) == 3
    assert type(cool.next(3, np.float64(0.3))) is int
    assert [cool(step) for step in range(12)] == [
        schedules.exponential(1.0, 0.01, 10)(step) for step in range(12)
    ]


def test_until_hard_cools_no_further_than_it_must():
    scores = np.array([2.0, 1.0, 0.5, -1.0])
    cool, step, seen = schedules.until_hard(1.0, 1e-3, 300, gap=0.05), 0, []
    for _ in range(300):
        weights = soft_topk(scores, 2, temperature=cool(step))
        seen.append((cool(step), np.minimum(weights, 1 - weights).max()))
        step = cool.next(step, seen[-1][1])
    temperatures, gaps = np.array(seen).T
    assert (np.diff(temperatures) <= 0).all()
    first = np.argmax(gaps <= 0.05)
    assert (temperatures[first:] == temperatures[first]).all()
    assert (gaps[:first] > 0.05).all()
    assert 0.04 < gaps[-1] <= 0.05


def test_until_hard_has_a_clock_per_row_where_it_is_given_one(framework):
    cool = schedules.until_hard(1.0, 0.01, 10)
    clock = cool.next(framework.array([3, 3], "int32"), framework.array([0.5, 0.01]))
    assert framework.is_kind(clock)
    np.testing.assert_array_equal(framework.numpy(clock), [4, 3])
    assert framework.numpy(cool.next(3, framework.array(0.5))) == 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: schedules.exponential(0.0, 1.0, 5), "start must be a finite number > 0; got 0.0"),
        (lambda: schedules.exponential(1.0, -1.0, 5), "end must be a finite number > 0; got -1.0"),
        (lambda: schedules.until_hard(1.0, math.inf, 5), "end must be a finite number > 0"),
        (lambda: schedules.linear(math.nan, 1.0, 5), "start must be a finite number; got nan"),
        (lambda: schedules.linear(-math.inf, 1.0, 5), "start must be a finite number; got -inf"),
        (lambda: schedules.cosine(1.0, 0.1, 0), "steps must be an integer ≥ 1; got 0"),
        (lambda: schedules.until_hard(1.0, 0.1, 5, gap=-1.0), "gap must be a finite number ≥ 0"),
        (lambda: schedules.constant(math.inf), "value must be a finite number; got inf"),
        (lambda: schedules.constant(1.0)(-1), "step must be a finite number ≥ 0; got -1"),
        (lambda: schedules.linear(1.0, 0.1, 5)(math.nan), "step must be a finite number ≥ 0"),
    ],
)
def test_values_out_of_range_are_refused(make, words):
    with pytest.raises(ValueError, match="^" + words.replace("+", r"\+")):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: schedules.linear("1", 0.1, 5), "start must be a finite number; got '1'"),
        (lambda: schedules.linear(np.ones(2), 0.1, 5), "start must be a finite number; got array"),
        (lambda: schedules.cosine(1.0, 0.1, 2.5), "steps must be an integer ≥ 1; got 2.5"),
        (lambda: schedules.constant(True), "value must be a finite number; got True"),
        (lambda: schedules.constant(1.0)("2"), "step must be a finite number ≥ 0, or an array"),
        (lambda: schedules.constant(1.0)(np.array([True])), "step must be real numbers"),
    ],
)
def test_values_of_another_kind_are_refused(make, words):
    with pytest.raises(TypeError, match=f"^{words}"):
        make()
