"""What the CPU kernels are translated to: vector code, and functions true to the last places."""

import re
import subprocess
import sys
from importlib import import_module

import llvmlite.binding as llvm
import numpy as np
import pytest

from kofn.kernels import contract
from kofn.kernels.cpu import every
from kofn.kernels.cpu.compiler import machine, now, target
from kofn.kernels.cpu.rows import launch, layout, passes

INF, NAN = np.inf, np.nan
ABREAST = [
    *sorted(layout.BY_LINK & {*layout.FORWARD, *layout.BACKWARD}),
    "statistics",
    "peak",
    "slope",
]
ANSWERS = *layout.TARGETS, *layout.LABELLED, *layout.LOG_BACKWARD, *layout.WRITTEN
OTHER_LOOPS = dict.fromkeys(ANSWERS, "answer_loops") | dict.fromkeys(layout.OF_GROUPS, "backward")
SUMMED = ("write", "mend", "closely", *layout.WRITTEN)
SINGLE = r"= f(?:add|sub|mul|cmp|div)[a-z ]* float "
SINGLE_STEP = r"= f(?:add|sub|mul|cmp|div)[a-z ]* double "
OF_ALPHA = *layout.IN_ALPHA, *layout.LOG_IN_ALPHA, *layout.LOSS_IN_ALPHA
OTHER_LOOPS |= dict.fromkeys(OF_ALPHA, "alpha_loops")
BY_LINK = sorted(layout.BY_LINK - {*layout.IN_ALPHA_ABREAST, "open_usual", "usual", "approach"})


def loops_of(kind, size):
    """The passes of a link, by name."""
    served = dict.fromkeys(OF_ALPHA, contract.OF_ALPHA)
    served |= dict.fromkeys((*layout.WRITTEN[0], *layout.WRITTEN[1]), layout.ONE_LOG)
    names = [name for name in BY_LINK if kind in served.get(name, layout.SERVED)]
    codes = [launch.pass_code(OTHER_LOOPS.get(name, "loops"), name, kind, size) for name in names]
    codes += [answer.codes(kind, size)[layout.ENTRIES] for answer in passes.ANSWERS]
    return {code.name: code for code in codes}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, marks=() if kind in (contract.NORMAL, contract.POWER) else pytest.mark.full
        )
        for kind in layout.SERVED
    ],
)
def test_loops_are_vectors_of_the_precision_they_are_given(kind):
    for name, of in loops_of(kind, 4).items():
        code = optimised(of)
        assert " x float>" in code, name
        # The sum of the weights is that of float64, in a loop of its own.
        wide = r"(?:fmul|fdiv|fsub|fcmp)[^\n]* x double>" if name in SUMMED else " x double>"
        assert not re.search(wide, code), name


def test_the_normal_link_calls_no_function_in_double_precision():
    """A call of erfc per entry took nine times as long as the rest."""
    for name, of in loops_of(contract.NORMAL, 8).items():
        code = optimised(of)
        assert " x double>" in code, name
        assert not re.findall(r"call double @(?!llvm)", code), name


def optimised(code):
    """What LLVM makes of a compiled function."""
    return str(machine.optimised(now.translated(code), code.symbol))


@pytest.mark.parametrize("name", ["weigh", "slope", *layout.OF_GROUPS])
def test_cotangents_are_loaded_before_it_is_known_who_needs_them(name):
    """A load under a mask waits for it: rows outside the cache took twice as long."""
    code = launch.pass_code(OTHER_LOOPS.get(name, "loops"), name, contract.LOGISTIC, 4)
    assert "@llvm.masked.load" not in optimised(code)
    assembly = machine.assembly(now.translated(code), code.symbol)
    assert not re.findall(r"\(%\w+.*\), %[xyz]mm.*\{%k\d\}", assembly)


@pytest.mark.parametrize("name", ABREAST)
def test_lanes_are_vectors_from_first_to_last(name):
    """No loop over lanes is left: neither unrolled to single numbers, nor one after another."""
    code = optimised(launch.pass_code("interleaved", name, contract.LOGISTIC, 4))
    assert not re.findall(SINGLE, code)


@pytest.mark.parametrize("name", ["evaluate", "write", "weigh", *layout.IN_ALPHA_ABREAST])
def test_lanes_with_an_alpha_each_are_vectors(name):
    """The exponents of the power are computed once for each of them, before the loop."""
    module = "alpha_loops" if name in layout.IN_ALPHA_ABREAST else "interleaved"
    code = optimised(launch.pass_code(module, name, contract.POWER, 4))
    assert not re.findall(SINGLE, code)


@pytest.mark.parametrize("code", [launch.FORWARD, launch.AFTER], ids=["forward", "back"])
def test_steps_of_the_search_are_vectors(code):
    """One that loops lane by lane took as long as a group's other steps together."""
    text = optimised(code)
    bodies = re.findall(
        r"^define [^\n]*search_lanes\d+(\w+?_all)B(.*?)^}", text, re.DOTALL | re.MULTILINE
    )
    found = {
        name: (" x double>" in body, len(re.findall(SINGLE_STEP, body))) for name, body in bodies
    }
    assert len(found) > 3
    # What is the same for all lanes is computed once.
    assert {
        name for name, (vectors, singles) in found.items() if not vectors or singles > 3
    } == set()


def for_level(code, level):
    """What LLVM makes of a function for a level of x86-64: intermediate code, and instructions."""
    machine.know_all_targets()
    triple = "x86_64-unknown-linux-gnu"
    made = llvm.Target.from_triple(triple).create_target_machine(level)
    text = machine.for_target(now.translated(code), triple, made)
    module = machine.optimised(text, code.symbol, machine.Target(made, level, ""))
    return str(module), made.emit_assembly(module)


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("kind", layout.SERVED)
def test_short_rows_stay_in_registers(kind, level):
    """Sums that were stored and loaded at each entry, and stores under a mask of 256 bits, took
    half the time.
    """
    text, _ = for_level(launch.pass_code("interleaved", "usual", kind, 4), level)
    assert len(re.findall(r"= phi <16 x float>", text)) >= 5
    # Steps are taken by as many rows as a register has.
    wide = len(re.findall(r"= fdiv [a-z ]*<16 x float>", text))
    assert (wide > 0) == (level == "x86-64-v4") or kind in contract.OCTAVES


@pytest.mark.parametrize("kind", layout.SERVED)
def test_nothing_of_short_rows_is_stored_under_a_mask_of_256_bits(kind):
    names = "open_usual", "usual", "first_evaluation", "write", "mend"
    for name in names[: None if kind not in contract.BOUNDED else 2]:
        code = launch.pass_code("interleaved", name, kind, 4)
        _, instructions = for_level(code, "x86-64-v3")
        assert not re.findall(r"maskmov[a-z]*\s+%ymm\d+, %ymm\d+, [^%]*\(%", instructions), name


# Intrinsics mark the loops of what calls them; in another process, as below.
LOOPS = """
import sys
from kofn.kernels.cpu.compiler.translate import translated
from kofn.kernels.cpu.runtime import intrinsics, vector_math

def loops(n, a, b):
    for i in range(n):
        for j in range(16):
            if i % 3 == j % 5:
                a += b
        for j in range(n):
            for k in range(16):
                a += vector_math.exp2(b) if a > b and k % 3 else b
    for i in range(n):
        if i == 7:
            break
        for j in range(16):
            a += b * i
    intrinsics.never_unroll()
    intrinsics.{}()
    return a

print(translated(loops, "qdd", "d", "loops", {{}}))
"""


@pytest.mark.parametrize(("name", "count"), [("at_once", 3), ("sums_at_once", 1)])
def test_loops_are_known_by_the_way_back_to_their_beginning(name, count):
    """An `if` inside one, whose blocks stand elsewhere in the function, was taken for another."""
    command = [sys.executable, "-c", LOOPS.format(name)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    marks = re.findall(r"^!\d+ = distinct !\{(.*)\}", text, re.MULTILINE)
    (width,) = re.findall(r'^(!\d+) = !\{!"llvm.loop.vectorize.width"', text, re.MULTILINE)
    assert len(marks) == 6
    assert sum(mark.count(",") == 2 for mark in marks) == 3
    assert sum(mark.endswith(f" {width}") for mark in marks) == count
    assert len(set(re.findall(r"!llvm.loop (!\d+)", text))) == 6


@pytest.mark.parametrize("level", [*target.LEVELS])
def test_quotients_are_divisions_where_these_are_the_faster_ones(level):
    code = launch.pass_code("backward", "weigh_rows", contract.LOGISTIC, 4)
    text = now.translated(code)
    known = machine.for_level(text, level, "")
    assert ('"reciprocal-estimates"="none"' in known) == (level == "x86-64-v3")
    if level == target.target()[0]:
        assert ("rcp" in machine.assembly(text, code.symbol)) == (level != "x86-64-v3")


def test_no_function_is_compiled_with_the_options_of_its_first_caller():
    """Then its bits would depend on what was translated before it in the same process."""
    names = {code.module for code in every.functions(layout.SERVED, (4, 8))}
    found = [
        f"{name}.{each}"
        for name in sorted(names)
        for each, value in vars(import_module(f"kofn.kernels.cpu.{name}")).items()
        if "fastmath" not in getattr(value, "targetoptions", {"fastmath": None})
    ]
    assert found == []


# Functions that were translated for kernels cannot be called from Python, so in another process.
ELEMENTARY = """
import sys
import numpy as np
from kofn.kernels.cpu.runtime import vector_math

@vector_math.inline
def every(z, x):
    tail, density = vector_math.normal_tail(-z)
    return vector_math.exp2(z), vector_math.log(x), tail, density

for dtype, least in (("float32", -12.9), ("float64", -37.0)):
    z = np.linspace(least, 0, 20_001).astype(dtype)
    x = np.geomspace(1e-30, 2, z.size).astype(dtype)
    found = [every(*pair) for pair in zip(z, x, strict=True)]
    np.savez(f"{sys.argv[1]}/{dtype}", z=z, x=x, found=np.array(found, np.float64).T)
"""


def test_elementary_functions_to_the_last_places(tmp_path):
    from scipy.special import erfc

    subprocess.run([sys.executable, "-c", ELEMENTARY, tmp_path], check=True)
    for dtype, ulp in (("float32", 6e-8), ("float64", 1.1e-16)):
        saved = np.load(tmp_path / f"{dtype}.npz")
        z, x, got = saved["z"], saved["x"], saved["found"]
        exact = z.astype(np.longdouble)
        assert np.max(np.abs(got[0] / np.exp2(exact) - 1)) <= 3 * ulp
        assert np.max(np.abs(got[1] / np.log(x.astype(np.longdouble)) - 1)) <= 6 * ulp
        rounding = 4 * ulp * (z.astype(np.float64) ** 2 + 2)
        tail = erfc(-z.astype(np.float64) * np.sqrt(0.5)) / 2
        density = np.exp(-(exact**2) / 2) / np.sqrt(2 * np.pi)
        assert np.all(np.abs(got[2] / tail - 1) <= rounding)
        assert np.all(np.abs(got[3] / density - 1) <= rounding)
