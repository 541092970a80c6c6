"""Rows in main memory: compiled on first use, kept on disk, dealt out to threads.

A kernel takes addresses, not arrays, so one compiled version serves NumPy and torch, read-only
memory included. The search is compiled once; per link and precision only what passes over a row.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from math import prod
from typing import Any

from kofn.arrays.typing import Array, Number
from kofn.kernels.contract import (
    EXPONENTIAL,
    OF_ALPHA,
    POWER,
    is_bounded,
    kind_of,
    kind_of_rows,
    number_of,
)
from kofn.kernels.cpu.jobs import GRAIN, HALF_GRAIN, Plan, halves_of, planned
from kofn.kernels.cpu.rows import layout
from kofn.kernels.cpu.rows.layout import LOGARITHMS as LOGARITHMS
from kofn.kernels.cpu.rows.layout import SERVED as SERVED
from kofn.kernels.cpu.rows.passes import ANSWERS, LOG_WEIGHTS, VALUE, Answer, Pass
from kofn.kernels.cpu.runtime import half, native, pool
from kofn.kernels.cpu.runtime.layout import CHUNK, COUNT, PART
from kofn.kernels.cpu.runtime.memory import FEW, Memory, each_per_row, memory_of, per_row, rooms
from kofn.kernels.cpu.runtime.native import Code
from kofn.kernels.cpu.runtime.own import told_of, work_for
from kofn.links.link import Link

_NOTHING = array("q", bytes(8 * layout.WORDS))
_UNUSED: Any = None

FORWARD = Code("rows.worker", "forward", native.WORK)
AFTER = Code("rows.worker", "after", native.WORK)
COMPARE = Code("rows.worker", "compare", native.WORK)
LOGS = Code("rows.worker", "logs", native.WORK)
LABEL_LOGS = Code("rows.worker", "label_logs", native.WORK)
ANSWER = Code("rows.worker", "answer", native.WORK)
ASSIST = Code("runtime.split_row", "assist", "q")
WORK = FORWARD, AFTER, COMPARE, LOGS, LABEL_LOGS
"""The work of threads on rows; the last two alone read neither formulas nor traits of links."""

LIKELY = -1  # in place of a link's number: a softmax, whose labels need no pass


@cache
def abreast_up_to(code: Any, kind: int) -> int:
    """Return how many entries the longest rows have that `code` computes abreast here."""
    kind = EXPONENTIAL if kind == LIKELY else kind
    return layout.SHORT_BACK if code is AFTER else layout.short_of(kind, native.vector_bits())


def pass_code(module: str, name: str, kind: int, size: int) -> Code:
    """A pass for a link and numbers of that size, by what makes it in loops.py, interleaved.py."""
    kind = kind if name in layout.BY_LINK else 0
    return Code(f"rows.{module}", name, native.PASS, "", kind, f"float{8 * size}")


def passes_of(
    code: Code | Answer | Pass, kind: int, size: int, n: int, cotangent: bool, in_rows: bool = True,
    of_alpha: bool = False,
) -> list[Code]:  # fmt: skip
    """The passes over rows of n that `code` calls, in the order of their places in memory.

    Without `in_rows`, the cotangents of k and T are not wanted; α's is with `of_alpha`.
    """
    if not isinstance(code, Code):
        return code.codes(kind, size)
    short, names = n <= abreast_up_to(code, kind), tuple[str, ...]()

    def each(module: str, names: tuple[str, ...]) -> list[Code]:
        return [pass_code(module, name, kind, size) for name in names]

    if code is COMPARE:
        likely, n = kind == LIKELY, n if short else PART  # θ is found abreast where losses are
        names = layout.TARGETS if cotangent else (() if likely else layout.LABELLED)
        names += (layout.WRITTEN[in_rows][cotangent],) * (not short and kind in layout.ONE_LOG)
        first = passes_of(FORWARD, EXPONENTIAL if likely else kind, size, n, False)
        last = layout.LOSS_IN_ALPHA * of_alpha
        return [*first, *each("answer_loops", names), *each("alpha_loops", last)]
    if code is LOGS:
        passes = each("answer_loops", layout.LOG_BACKWARD)
        return passes + each("alpha_loops", layout.LOG_IN_ALPHA * of_alpha)
    if code is LABEL_LOGS:
        return [*each("answer_loops", ("log_weigh",)), *each("loops", ("weigh", "scale"))]
    if code is FORWARD:
        names = layout.FORWARD_ABREAST if short else layout.FORWARD_ROWS
    else:
        names = layout.BACKWARD_ABREAST if short else layout.BACKWARD
    # Of these there is nothing to prepare.
    instead = {"first_evaluation": "evaluate"} if is_bounded(kind) else {}
    if not short:
        instead |= {"peak": "finite_peak"} if is_bounded(kind) else {}
        instead |= {} if kind in layout.HAVE_ROUGH else {"rough": "evaluate"}
        instead |= {} if layout.turned_of(kind, size) else {"approach": "evaluate"}
        instead |= {} if in_rows else {"slope": "slope_of_scores"}
    names = tuple(instead.get(name, name) for name in names)
    passes = each("interleaved" if short else "loops", names)
    groups = layout.OF_GROUPS[: None if in_rows or of_alpha else -1] * (code is AFTER and not short)
    last = layout.IN_ALPHA_ABREAST if short else layout.IN_ALPHA
    return [*passes, *each("backward", groups), *each("alpha_loops", last * of_alpha)]


def codes(kinds: Iterable[int], size: int) -> list[Code]:
    """The code that rows need, for links by number and bytes per number."""
    needed, ways = [*WORK, ANSWER, ASSIST], itertools.product((False, True), repeat=2)
    for code, kind, (back, in_rows), n in itertools.product(WORK, kinds, ways, (1, PART)):
        needed += passes_of(code, kind, size, n, back, in_rows, in_rows and kind in OF_ALPHA)
    for each, kind in itertools.product(ANSWERS, kinds):
        needed += each.codes(kind, size)
    return needed


def weights(
    x: Array, k: Number, temperature: Number, link: Link, single: bool = False
) -> tuple[Array, Array, bool]:
    """(weights, θ, whether rows were given up) of NumPy arrays or torch tensors.

    Weights of 16-bit scores are float32 if `single`.
    """
    memory = memory_of(x)
    x = memory.packed(x)
    out = memory.empty(x, x.shape) if single else memory.empty_like(x)
    theta = memory.empty(x, (2, *x.shape[:-1]))
    lost = deal(FORWARD, memory, link, x, k, temperature, theta, out=out)
    return out, theta, lost


def threshold(x: Array, k: Number, temperature: Number, link: Link) -> tuple[Array, bool]:
    """(θ as two floats' worth, (2, …), whether rows were given up)."""
    memory = memory_of(x)
    x = memory.packed(x)
    theta = memory.empty(x, (2, *x.shape[:-1]))
    return theta, deal(FORWARD, memory, link, x, k, temperature, theta)


def gradients(
    x: Array,
    cotangent: Array,
    theta: Array,
    k: Number,
    temperature: Number,
    link: Link,
    *,
    of_alpha: bool = False,
) -> tuple[Any, ...]:
    """Cotangents of the scores, (…, n), and of k and temperature, (2, …), None of two numbers; and
    of alpha, if wanted.
    """
    memory = memory_of(x)
    x, cotangent = memory.packed(x), memory.packed(cotangent)
    out, in_rows = memory.empty_like(x), None
    if type(k) is not float or type(temperature) is not float:
        in_rows = memory.empty(x, (2, *x.shape[:-1]))
    three = memory.empty(x, x.shape[:-1]) if of_alpha else None
    deal(AFTER, memory, link, x, k, temperature, theta, cotangent, out, in_rows, three=three)
    return (out, in_rows, three) if of_alpha else (out, in_rows)


def sums(
    of: Answer | Pass, x: Array, theta: Array, k: Number, temperature: Number, link: Link
) -> Array:
    """The two numbers of each row that are the answer or the pass, (2, …), from θ."""
    memory = memory_of(x)
    x = memory.packed(x)
    out = memory.empty(x, (2, *x.shape[:-1]))
    deal(of, memory, link, x, k, temperature, theta, two=out)
    return out


values = partial(sums, VALUE)
"""(x, θ, k, T, link) -> S_k and its slope in the temperature, (2, …)."""


def losses(
    x: Array, target: Array, k: Number, temperature: Number, link: Link, likely: bool = False,
    wanted: bool = True, known: tuple[Any, Any] | None = None, *, of_alpha: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """(Fenchel–Young losses and Σ(p − t)z, (2, …); p − t; whether rows were given up: a loss of
    NaN); and the derivatives of the losses in alpha, if `of_alpha`. Or, if `likely`, −log p of a
    softmax and zeros.

    The target is labels, integers of 64 bits per row, or an array like x, or of bytes: then k is
    its sum. If weights and θ are `known`, the target is not of bytes, k is given, and the weights,
    packed, are overwritten with p − t. Of 16-bit scores p − t is float32, and the target may be.
    Of longer rows p − t may be not `wanted`.
    """
    memory = memory_of(x)
    x, target = memory.packed(x), memory.packed(target)
    two, is_dense = memory.empty(x, (2, *x.shape[:-1])), target.ndim == x.ndim
    dense, labels = (target, None) if is_dense else (None, target)
    k = k if known or not is_dense else memory.empty(x, x.shape[:-1])
    if known is not None:
        residual, theta = known
    else:
        kind = kind_of_rows(link)
        longest = abreast_up_to(COMPARE, number_of(link) if kind is None else kind)
        short = not likely and x.shape[-1] <= longest
        wanted = wanted or short
        residual, theta = memory.empty(x, x.shape) if wanted else None, None
    three = memory.empty(x, x.shape[:-1]) if of_alpha else None
    numbers = theta, dense, residual, two, labels, likely, None, three
    lost = deal(COMPARE, memory, link, x, k, temperature, *numbers)
    return (two, residual, lost, three) if of_alpha else (two, residual, lost)


def logarithms(
    x: Array, weights: Array, theta: Array, k: Number, temperature: Number, link: Link
) -> Array:
    """The weights, packed, overwritten with their logarithms."""
    memory = memory_of(x)
    x = memory.packed(x)
    deal(LOG_WEIGHTS, memory, link, x, k, temperature, theta, out=weights)
    return weights


def log_weights(x: Array, k: Number, temperature: Number, link: Link) -> tuple[Array, Array, bool]:
    """(log p, θ, whether rows were given up), of 16-bit numbers; p is float32 until then."""
    memory = memory_of(x)
    x = memory.packed(x)
    out, theta = memory.empty_like(x), memory.empty(x, (2, *x.shape[:-1]))
    lost = deal(FORWARD, memory, link, x, k, temperature, theta, out=out, then=LOG_WEIGHTS)
    return out, theta, lost


def log_gradients(
    x: Array, cotangent: Array, theta: Array, k: Number, temperature: Number, link: Link,
    *, of_alpha: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """(cotangents of the scores, (…, n); NaN where a row was given up, and of T, (2, …);
    whether any row was given up; of alpha, if wanted), for cotangents of logarithms.
    """
    memory = memory_of(x)
    x, cotangent = memory.packed(x), memory.packed(cotangent)
    out, in_rows = memory.empty_like(x), memory.empty(x, (2, *x.shape[:-1]))
    three = memory.empty(x, x.shape[:-1]) if of_alpha else None
    lost = deal(LOGS, memory, link, x, k, temperature, theta, cotangent, out, in_rows, three=three)
    return (out, in_rows, lost, three) if of_alpha else (out, in_rows, lost)


def label_gradients(
    x: Array, labels: Array, cotangent: Array, theta: Array, temperature: Number, link: Link
) -> tuple[Any, bool]:
    """(cotangents of the scores; whether any row was given up), for one of log p of each label."""
    memory = memory_of(x)
    x, labels, cotangent = map(memory.packed, (x, labels, cotangent))
    given = x, cotangent, temperature, theta, None, (out := memory.empty_like(x))
    return out, deal(LABEL_LOGS, memory, link, *given, labels=labels)


@lru_cache(maxsize=512)
def plan_of(
    code: Code | Answer | Pass, kind: int, size: int, n: int, cotangent: bool, answer: bool,
    in_rows: bool = True, in_bytes: bool = False, of_alpha: bool = False,
) -> Plan:  # fmt: skip
    single, short = max(size, 4), n <= abreast_up_to(code, kind)
    keeps = kind if is_bounded(kind) and not short and n <= PART else -1
    each = passes_of(code, kind, single, n, cotangent, in_rows, of_alpha)
    arrays = 0.5 if code in (FORWARD, AFTER) else 3 if cotangent else 2
    if code is COMPARE and (cotangent or size > 2):  # 16 rows take as long as one
        arrays = 0.5 if size > 2 and not in_bytes else arrays / 2
    group = layout.together(n, arrays, short)
    room = layout.room(n, single, group, answer, in_bytes, keeps)
    grain, begun = GRAIN if size == single else HALF_GRAIN, room if group < 0 else layout.HEAD
    run = work_for(kind, code if isinstance(code, Code) else ANSWER)
    return planned(run, each, n, group, grain, room, begun)._replace(told=told_of(kind))


def deal(
    code: Code | Answer | Pass, memory: Memory, link: Link, x: Array, k: Number,
    temperature: Number, theta: Array, cotangent: Array | None = None, out: Array | None = None,
    two: Array | None = None, labels: Array | None = None, likely: bool = False,
    then: Answer | None = None, three: Array | None = None,
    costs: tuple[Any, int, Any] | None = None, planning: Callable[..., Plan] = plan_of,
) -> bool:  # fmt: skip
    """Deal rows to threads; return whether one was given up. A second function is for 16-bit
    numbers only.

    If entries have costs, these come with the bytes from one row to the next, and with an array for
    their cotangents, or None; `planning` makes the plan.

    A row's answer does not depend on who works on it, or with whom. The arrays stay with the work
    for as long as a thread has it (see shares.py). Rows of 16-bit numbers are worked on as float32.
    """
    n, alphas, address = x.shape[-1], link.alpha, memory.address
    number, entry = alphas is None or type(alphas) is float, x.itemsize
    kind = kind_of(link) if number else POWER  # as `kind_of_rows`: a call less
    kind = number_of(link) if kind is None else kind
    size, count = max(entry, 4), prod(x.shape[:-1])
    of_link = kind if not likely else LIKELY
    back, answers = cotangent is not None, out is not None  # else what is prepared needs memory
    in_rows = type(temperature) is not float if code is COMPARE else not back or two is not None
    in_bytes = cotangent is not None and cotangent.itemsize == 1
    plan = planning(code, of_link, entry, n, back, answers, in_rows, in_bytes, three is not None)
    words = _NOTHING[:]
    each = each_per_row((k, temperature), memory, count, size)
    (k, words[layout.K]), (temperature, words[layout.TEMPERATURE]) = each
    kind, its_alpha = plan.told or (kind, 0.0)
    alpha = alphas if number and alphas is not None else its_alpha
    if not number:
        alphas, words[layout.ALPHA] = per_row(alphas, memory, count, size)
    words[COUNT], words[CHUNK], words[layout.TOGETHER] = count, plan.chunk, plan.group
    words[layout.N], words[layout.SIZE], words[layout.KIND] = n, size, kind
    words[layout.PASSES] = plan.passes_at
    words[layout.X], words[layout.LIKELY], words[layout.BYTES] = address(x), likely, in_bytes
    high = words[layout.HI] = 0 if theta is None else address(theta)
    words[layout.LO] = high and high + count * size
    words[layout.G] = 0 if cotangent is None else address(cotangent)
    words[layout.OUT] = 0 if out is None else address(out)
    words[layout.THREE] = 0 if three is None else address(three)
    words[layout.LABELS] = 0 if labels is None else address(labels)
    words[layout.ONE] = one = 0 if two is None else address(two)
    words[layout.TWO] = one and one + count * size
    if costs is not None:
        each_cost, apart_by, in_costs = costs
        words.extend((address(each_cost), apart_by, 0 if in_costs is None else address(in_costs)))
    plans = [plan] if then is None else [plan, plan_of(then, of_link, 2, n, False, answers)]
    arrays = k, temperature, alphas, theta, two, three, labels, costs
    return go(plans, words, alpha, (x, cotangent, out), arrays)


def go(
    plans: list[Plan], words: array[int], alpha: float, arrays: tuple[Any, ...], others: Any,
    numbers: Any = None,
) -> bool:  # fmt: skip
    """Have threads do a job; return whether a row was given up. What hangs on threads is written
    here: the address of a team, and of two numbers, k and T of each row where there is none.

    `arrays` are scores, cotangents and answers, or None; they and the others are kept meanwhile.
    The `numbers` are k and T of all rows where the job has no addresses of them.
    """
    plan, x, count, n = plans[0], arrays[0], words[COUNT], words[layout.N]
    crew = 1 if n * count < 2 * GRAIN else pool.wanted(x)
    # One thread leads, others take parts for it.
    together = crew > count and n > PART and plan.passes[0] != 0
    apart, few = 1 if together else crew, count if count < FEW else FEW
    width, room, size = plan.width, None, words[layout.SIZE]
    if x.itemsize == 2:
        entries, slots = n * min(plan.chunk, count), 2 if arrays[1] is None else 3
        room = half.room_of(width, layout.WORDS, entries, slots)
        width = room.width
    own, scratch = rooms(apart, width, 2 * few, plan.cleared)
    if numbers is not None and not words[layout.K]:
        numbers = each_per_row(numbers, _UNUSED, count, size)
        (_, words[layout.K]), (_, words[layout.TEMPERATURE]) = numbers
    # Two numbers of each row are written after θ, wanted or not. If not, then after the threads'
    # own memory, or over k and T of many rows, which nobody else reads.
    if not words[layout.ONE]:
        one = scratch + 8 * apart * width
        over = words[layout.K], words[layout.TEMPERATURE]
        two = (one, one + count * size) if count == few else over
        words[layout.ONE], words[layout.TWO] = two
    job, run, kept, shared = words, plan.run, None, scratch + 8 * plan.room if together else 0
    if room is not None:
        job, kept = halves_of(plans, room, words, arrays, shared)
        run = native.function(half.DRIVER)
    elif together:  # the team of halves is dismissed after all of their jobs
        words[layout.TEAM] = shared
    first = job.buffer_info()[0]
    if crew == 1:
        run(first, scratch, alpha, True)
    else:
        leads = [(run, (first, scratch + 8 * width * i, alpha, i == 0)) for i in range(apart)]
        works = [*leads, *[(native.function(ASSIST), (shared,))] * (crew - apart)]
        pool.together(x, works, (words, job, kept, own, arrays, others, numbers))
    return job[layout.GIVEN_UP] != 0
