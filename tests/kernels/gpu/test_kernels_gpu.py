"""The GPU's kernels where there is no GPU: interpreted on the CPU, and compiled for one."""

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import pytest

import kofn
import own_links
from kofn.kernels import contract, prices
from kofn.maps.assignment import on_device
from machine_code import local_memory

try:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kofn.kernels.gpu.choice import programs as choices
    from kofn.kernels.gpu.choice import ranked as ranks
    from kofn.kernels.gpu.choice import taylor as polynomials
    from kofn.kernels.gpu.choice import truncated as sets
    from kofn.kernels.gpu.doubles import launch as gpu_doubles
    from kofn.kernels.gpu.doubles import prices as of_prices
    from kofn.kernels.gpu.doubles import programs as doubles
    from kofn.kernels.gpu.doubles.recorded import rules_of
    from kofn.kernels.gpu.knapsack import fill as purchases
    from kofn.kernels.gpu.knapsack import launch as gpu_knapsack
    from kofn.kernels.gpu.knapsack import programs as knapsacks
    from kofn.kernels.gpu.rows import answers, formulas, losses, many_programs, margins, one_program
    from kofn.kernels.gpu.rows import launch as gpu
    from kofn.kernels.gpu.rows import numbers as per_row_numbers
    from kofn.kernels.gpu.rows.own import own_of
    from kofn.kernels.gpu.subsets import launch as gpu_subsets
    from kofn.kernels.gpu.subsets import programs
except ImportError:
    pytest.skip("Triton has no release for this system", allow_module_level=True)

HERE = Path(__file__).parent
full = pytest.mark.full


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "marked"),
    [
        (("rows", "odd_rows", "bounds", "subsets", "own", "overflow"), "not full"),
        (
            (
                *("losses", "choices", "sets", "thresholds", "quantiles", "knapsacks"),
                *("per_row", "polynomials", "doubles", "prices"),
            ),
            "not full",
        ),
        pytest.param(("rows", "odd_rows"), "full", marks=pytest.mark.full),
        pytest.param(
            (
                *("bounds", "subsets", "losses", "own", "knapsacks", "per_row", "polynomials"),
                *("doubles", "prices"),
            ),
            "full",
            marks=pytest.mark.full,
        ),
    ],
    ids=["part of rows", "part", "rest of rows", "rest"],
)
def test_interpreted(names, marked):
    """In a process of their own: Triton must be told before it is imported."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"),
            *("-m", marked, *(str(HERE / "interpreted" / f"{name}.py") for name in names)),
        ],
        env={
            **{key: v for key, v in os.environ.items() if not key.startswith("PYTEST")},
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-1000:]


NUMBERS = {"ignored": "i32", "count": "i32", "n": "i32", "parts": "i32", "alpha": "fp32"}
PER_ROW = ("k", "temperature")


def described(kernel, sums, entries, alpha, per_row, types):
    """(the types of its arguments, which of them are multiples of 16), as a launch would say.

    A NamedTuple is one argument with a type for each of its fields.
    """
    kinds, aligned = {}, []
    special = dict(sums_at=sums, x_at=entries, g_at=entries, out_at=entries) | types
    numbers = {**NUMBERS, "alpha": alpha, **dict.fromkeys(PER_ROW, per_row)} | types

    def kind_of(name, *place):
        if name == "n" or name.endswith("_at") or (name in PER_ROW and per_row == "*fp32"):
            aligned.append(place)
        return numbers.get(name) or special.get(name, "*fp32")

    for i, one in enumerate(inspect.signature(kernel.fn).parameters.values()):
        bundle = kernel.fn.__globals__.get(one.annotation)
        if one.annotation == "tl.constexpr":
            kinds[one.name] = "constexpr"
        elif bundle:
            kinds[one.name] = bundle(*(kind_of(f, i, j) for j, f in enumerate(bundle._fields)))
        else:
            kinds[one.name] = kind_of(one.name, i)
    return kinds, aligned


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Compile a kernel as launch.py would for rows of n: its registers, and its code on a call."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

    def compile_(
        kernel, capability, warps, options=gpu.OPTIONS, sums="*fp32", entries="*fp32",
        alpha="fp32", per_row="*fp32", types=MappingProxyType({}), **constants,
    ):  # fmt: skip
        kinds, aligned = described(kernel, sums, entries, alpha, per_row, types)
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        attributes = {place: [["tt.divisibility", 16]] for place in aligned}
        source = ASTSource(kernel, kinds, constexprs=places, attrs=attributes)
        target = GPUTarget("cuda", capability, 32)
        binary = triton.compile(source, target=target, options={"num_warps": warps, **options}).asm[
            "cubin"
        ]
        path = tmp_path / "kernel.cubin"
        path.write_bytes(binary)

        def said(what):
            command = [str(tools / "cuobjdump"), what, str(path)]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        used = said("--dump-resource-usage")
        found = {
            name: int(re.search(rf"{name}:(\d+)", used).group(1))
            for name in ("REG", "STACK", "LOCAL")
        }
        found["LDL, STL"] = local_memory(path)
        print(kernel.__name__, capability, constants, found)
        return found, lambda: said("-sass")  # which takes longer than the compiler

    return compile_


def constants_of(kernel, kind, n):
    shape = gpu.shape_of(n)
    known = dict(ROWS=shape.rows, BLOCK=shape.block, WIDE=shape.wide, WRITE=True)
    return shape.warps, dict(KIND=kind) | {k: v for k, v in known.items() if k in kernel.arg_names}


SHAPES = [(16, 80), (64, 90), (1024, 90), (4096, 80), (4096, 90)]
ORDINARY = {(contract.LOGISTIC, 4096, 90, "*bf16")}
HALVES = ("*bf16", "*fp16")
EVERY = [(kind, n, sm, "*fp32") for kind in formulas.SERVED for n, sm in SHAPES]
EVERY += [
    (kind, n, sm, e)
    for kind in (contract.LOGISTIC, contract.POWER)
    for n, sm in SHAPES
    for e in HALVES
]


@pytest.mark.parametrize(
    "capability", [pytest.param(80, marks=full), 90, pytest.param(100, marks=full)]
)
def test_what_registers_have_no_room_for_is_seen(capability, compiled):
    """By the assembler, and in the code, where the disassembler reads the same."""
    warps, constants = constants_of(one_program.forward, contract.LOGISTIC, 4096)
    few = dict(gpu.OPTIONS, maxnreg=24)
    found, read = compiled(one_program.forward, capability, warps, few, **constants)
    assert found["STACK"] + found["LOCAL"] > 0
    assert found["LDL, STL"] == len(re.findall(r"\b(?:LDL|STL)\b", read())) > 0


@pytest.mark.parametrize(
    ("n", "capability"),
    [pytest.param(*one, marks=() if one == SHAPES[1] else pytest.mark.full) for one in SHAPES],
)
def test_an_alpha_per_row_takes_no_memory(n, capability, compiled):
    for kernel in (one_program.forward, one_program.backward):
        warps, constants = constants_of(kernel, contract.POWER, n)
        found, _ = compiled(kernel, capability, warps, alpha="*fp32", **constants)
        assert found["STACK"] == found["LOCAL"] == 0


@pytest.mark.parametrize(
    ("n", "capability"),
    [pytest.param(*one, marks=() if one == SHAPES[1] else pytest.mark.full) for one in SHAPES],
)
def test_numbers_for_all_rows_take_no_memory(n, capability, compiled):
    for kernel in (one_program.forward, one_program.backward):
        warps, constants = constants_of(kernel, contract.LOGISTIC, n)
        found, _ = compiled(kernel, capability, warps, per_row="fp32", **constants)
        assert found["STACK"] == found["LOCAL"] == 0


@pytest.mark.parametrize(
    ("kind", "n", "capability", "entries"),
    [pytest.param(*one, marks=() if one in ORDINARY else pytest.mark.full) for one in EVERY],
)
def test_rows_compile_to_registers_alone(kind, n, capability, entries, compiled):
    """No stack, no local memory: what does not fit would be kept in memory, at its speed."""
    for kernel in (one_program.forward, one_program.backward):
        warps, constants = constants_of(kernel, kind, n)
        found, read = compiled(kernel, capability, warps, entries=entries, **constants)
        code = read()
        assert found["STACK"] == found["LOCAL"] == 0
        assert found["REG"] <= 80  # 24 warps to a multiprocessor
        assert found["LDL, STL"] == 0
        if n % 4 == 0:
            assert ("LDG.E.64" if entries in HALVES else "LDG.E.128") in code
        if entries in HALVES:
            assert re.search(r"F2FP\.[\w.]*PACK_AB ", code)  # to the nearest, two at a time
        assert "F64" not in code
        assert not re.search(r"\bD(ADD|MUL|FMA)\b", code)  # a float64 costs 2 to 64 of float32


OF_OWN = [
    pytest.param(
        *(link, name, n, sm),
        id=f"{link.__name__}-{name}-{n}-{sm}",
        marks=() if (link.__name__, name, n) == ("GumbelFarOut", "backward", 64) else full,
    )
    for link in (own_links.GumbelFarOut, own_links.Student, own_links.Again, own_links.Square)
    for name in ("forward", "backward")
    for n, sm in SHAPES
]


@pytest.mark.parametrize(("link", "name", "n", "sm"), OF_OWN)
def test_links_of_a_users_own_compile_to_registers_alone(link, name, n, sm, compiled):
    kernel = getattr(one_program, name)
    warps, constants = constants_of(kernel, own_of(link().inner.number), n)
    found, read = compiled(kernel, sm, warps, **constants)
    assert found["STACK"] == found["LOCAL"] == 0
    assert found["REG"] <= 80
    assert not re.search(r"\b(LDL|STL|D(ADD|MUL|FMA))\b|F64", read())


ORDINARY_ANSWERS = (contract.NORMAL, 4096, 90, "*fp32"), (None, 4096, 90, "*bf16")
RATED, PLAIN = (dict.fromkeys(("RATED", "BY_CLASS"), whether) for whether in (True, False))
OF_SETS = dict(WHAT=contract.AGAINST, OF_K=False, NUCLEUS=False, LABELS=False, WANTED=True)
ANSWERS = (
    (answers.logarithms, formulas.LOGARITHMS, {}),
    (answers.log_gradients, formulas.LOGARITHMS, {}),
    (answers.values, formulas.SERVED, {}),
    (answers.threshold_gradients, formulas.SERVED, {}),
    (losses.losses, formulas.SERVED, dict(LABELS=True, OMEGA=False, WANTED=True, **RATED)),
    (losses.losses, losses.WITH_OMEGA, dict(LABELS=False, OMEGA=True, WANTED=True, **RATED)),
    (losses.losses, (contract.NORMAL,), dict(LABELS=False, OMEGA=False, WANTED=False, **PLAIN)),
    (losses.likelihoods, (None,), dict(WANTED=True, **RATED)),
    (losses.missed, (None,), dict(BY_CLASS=True, LOGS=False, KNOWN=False)),
    (losses.missed, (None,), dict(BY_CLASS=True, LOGS=True, KNOWN=False)),
    (losses.missed, (None,), dict(BY_CLASS=True, LOGS=False, KNOWN=True)),
    (margins.margins, (None,), dict(TURNED=False)),
    (margins.margins, (None,), dict(TURNED=True)),
    (margins.margins_back, (None,), {}),
    (choices.hard, (None,), {}),
    (choices.largest, (None,), {}),
    (choices.tally, (None,), dict(WIDTH=8)),
    (sets.truncated, (None,), dict(OF_SETS, OF_K=True)),
    (sets.truncated, (None,), dict(OF_SETS, NUCLEUS=True)),
    (sets.truncated, (None,), dict(OF_SETS, LABELS=True, OF_K=True)),
    (sets.truncated, (None,), dict(OF_SETS, LABELS=True, NUCLEUS=True, WHAT=contract.KEPT)),
    (sets.truncated, (None,), dict(OF_SETS, OF_K=True, NUCLEUS=True, WHAT=contract.ENTROPY)),
    (sets.truncated_back, (None,), {}),
    (polynomials.taylor, (None,), {}),
    (polynomials.taylor_back, (None,), {}),
    (ranks.ranked, (None,), {}),
    (ranks.ranked_back, (None,), {}),
    (ranks.mixed, (None,), {}),
)
OF_ANSWERS = [
    (kernel, kind, n, sm, entries, more)
    for kernel, kinds, more in ANSWERS
    for kind in kinds
    for n, sm in ((64, 80), (64, 100), (4096, 90))
    for entries in ("*fp32", *HALVES)
]


@pytest.mark.parametrize(
    ("kernel", "kind", "n", "sm", "entries", "more"),
    [
        pytest.param(*each, id=f"{each[0].__name__}-{'-'.join(map(str, each[1:5]))}-{i}",
                     marks=() if each[1:5] in ORDINARY_ANSWERS else pytest.mark.full)
        for i, each in enumerate(OF_ANSWERS)
    ],
)  # fmt: skip
def test_answers_compile_to_registers_alone(kernel, kind, n, sm, entries, more, compiled):
    warps, constants = constants_of(kernel, kind, n)
    registers = gpu.WIDER if kernel.__module__ != choices.__name__ else 80
    constants = {name: v for name, v in constants.items() if v is not None} | more
    target = "*i64" if more.get("LABELS", True) else "*fp32" if more.get("OMEGA") else "*i1"
    options, types = gpu.options_of(warps, registers), dict(target_at=target)
    types |= dict(indices_at="*i64", labels_at="*i64", counts_at=("*i64", "*i64"))
    if kernel in (choices.largest, choices.tally):
        types |= dict(out_at="*i64", k="i32")
    if kernel.__module__ == ranks.__name__:
        types |= dict(places_at="*i64", low="i32", high="i32", share="fp32")
        types |= dict(x_at="*fp32") if "back" in kernel.__name__ else dict(out_at="*fp32")
    if kernel.__module__ == margins.__name__:
        numbers = dict.fromkeys(("temperature", "margin", "sine", "cosine"), "fp32")
        types |= numbers | dict(out_at="*fp32" if "TURNED" in more else entries)
    if kernel.__module__ == polynomials.__name__:
        types |= dict(zeros=("fp32",) * 8, farthest="fp32")
    if kernel.__module__ == sets.__name__:
        own = "*i64" if more.get("LABELS") else "*fp32"
        types |= dict(out_at="*fp32", own_at=own, k="i32", share="fp32", log_least="fp32")
    found, _ = compiled(kernel, sm, warps, options, entries=entries, types=types, **constants)
    assert found["STACK"] == found["LOCAL"] == 0
    assert found["LDL, STL"] == 0


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("limit", number) for number in ("*fp32", "*fp64", "*bf16", "*i64", "*u8")),
        *(("limit_back", number) for number in ("*fp32", "*fp64", "*bf16")),
    ],
)
@pytest.mark.parametrize(
    "capability", [80, *(pytest.param(sm, marks=pytest.mark.full) for sm in (90, 100))]
)
def test_numbers_per_row_compile_to_registers_alone(name, number, capability, compiled):
    """Of every type, and as they lie: what a user gives need not be aligned."""
    tensors = dict.fromkeys(("k_at", "t_at"), number if name == "limit" else "*fp32")
    answers_ = dict.fromkeys(("k_out_at", "t_out_at"), "*fp32" if name == "limit" else number)
    types = dict.fromkeys(("k_step", "t_step"), "i32") | tensors | answers_
    types |= dict(n="fp32", least="fp32", greatest="fp32", inside_at="*i8")
    constants = dict(OF_K=True, OF_T=True, BLOCK=gpu.EACH)
    kernel = getattr(per_row_numbers, name)
    found, _ = compiled(kernel, capability, 4, gpu.options_of(4), types=types, **constants)
    assert found["STACK"] == found["LOCAL"] == 0
    assert found["LDL, STL"] == 0


WITH_COSTS = (
    (knapsacks.forward, formulas.SERVED, dict(WRITE=True)),
    (knapsacks.forward, formulas.SERVED, dict(WRITE=False)),
    (knapsacks.backward, formulas.SERVED, dict(OF_COSTS=True, OF_PRICE=False)),
    (knapsacks.backward, formulas.SERVED, dict(OF_COSTS=True, OF_PRICE=True)),
    (knapsacks.values, formulas.SERVED, {}),
    (knapsacks.values_back, (None,), {}),
    (purchases.fill, (None,), {}),
)
OF_COSTS = [
    (kernel, kind, n, sm, more)
    for kernel, kinds, more in WITH_COSTS
    for kind in kinds
    for n, sm in ((64, 80), (64, 100), (4096, 90))
]


@pytest.mark.parametrize(
    ("kernel", "kind", "n", "sm", "more"),
    [
        pytest.param(*each, id=f"{each[0].__name__}-{'-'.join(map(str, each[1:4]))}-{i}",
                     marks=() if each[0] is purchases.fill and each[3] == 90 else pytest.mark.full)
        for i, each in enumerate(OF_COSTS)
    ],
)  # fmt: skip
def test_rows_with_costs_compile_to_registers_alone(kernel, kind, n, sm, more, compiled):
    """Their scores are float32, those of half precision too: they are cast before."""
    rows, block, warps = gpu_knapsack.shape_of(n)
    constants = dict(ROWS=rows, BLOCK=block) | more | ({} if kind is None else dict(KIND=kind))
    types = {"given": knapsacks.Given(*["*fp32"] * 5, "i32", "i32", "fp32")}
    options = gpu.options_of(warps, gpu_knapsack.REGISTERS)
    found, _ = compiled(kernel, sm, warps, options, types=types, **constants)
    assert found["STACK"] == found["LOCAL"] == 0
    assert found["LDL, STL"] == 0


@pytest.mark.parametrize(
    "link",
    [
        pytest.param(link, marks=() if link is own_links.Student else full, id=link.__name__)
        for link in (own_links.Student, own_links.GumbelFarOut, own_links.Square)
    ],
)
@pytest.mark.parametrize("sm", [90, pytest.param(80, marks=full), pytest.param(100, marks=full)])
def test_rows_with_costs_by_links_of_a_users_own_compile_to_registers_alone(link, sm, compiled):
    number = link().inner.number
    for kernel, more in (
        (knapsacks.forward, dict(WRITE=True)),
        (knapsacks.backward, dict(OF_COSTS=True, OF_PRICE=False)),
    ):
        rows, block, warps = gpu_knapsack.shape_of(64)
        constants = dict(ROWS=rows, BLOCK=block, KIND=own_of(number)) | more
        types = {"given": knapsacks.Given(*["*fp32"] * 5, "i32", "i32", "fp32")}
        options = gpu.options_of(warps, gpu_knapsack.REGISTERS)
        found, _ = compiled(kernel, sm, warps, options, types=types, **constants)
        assert found["STACK"] == found["LOCAL"] == 0
        assert found["LDL, STL"] == 0


OF_DOUBLES = [
    (name, kind, n, sm, more)
    for name, more in (
        ("forward", dict(PRICED=True, WRITE=True)),
        ("forward", dict(PRICED=False, WRITE=True)),
        ("forward", dict(PRICED=True, WRITE=False)),
        ("backward", {}),
    )
    for kind in formulas.SERVED
    for n, sm in ((64, 80), (64, 100), (4096, 90))
]


@pytest.mark.parametrize(
    ("name", "kind", "n", "sm", "more"),
    [
        pytest.param(*each, id=f"{'-'.join(map(str, each[:4]))}-{i}",
                     marks=() if each[:4] == ("backward", contract.LOGISTIC, 4096, 90) else full)
        for i, each in enumerate(OF_DOUBLES)
    ],
)  # fmt: skip
def test_rows_of_float64_compile_to_registers_alone(name, kind, n, sm, more, compiled):
    kernel, (rows, block, warps) = getattr(doubles, name), gpu_doubles.shape_of(n)
    constants = dict(ROWS=rows, BLOCK=block, KIND=kind) | more
    named = (*doubles.Given._fields, *kernel.arg_names)
    types = {each: "*fp64" for each in named if each.endswith("_at")}
    types |= dict(per_price="i32", per_t="i32", alpha="i64")
    options = gpu.options_of(warps, gpu_doubles.REGISTERS)
    found, _ = compiled(kernel, sm, warps, options, types=types, **constants)
    assert found["STACK"] == found["LOCAL"] == 0
    assert found["LDL, STL"] == 0


@pytest.mark.parametrize(
    ("name", "n", "sm"),
    [
        pytest.param(name, n, sm, marks=() if (name, sm) == ("judge", 90) else full)
        for name in ("rows_seen", "judge", "equations", "advance")
        for n, sm in ((8, 80), (64, 80), (64, 100), (4096, 90))
    ],
)
def test_passes_of_a_search_for_prices_compile_to_registers_alone(name, n, sm, compiled):
    kernel, (rows, block, warps) = getattr(of_prices, name), gpu_doubles.shape_of(n)
    rules = rules_of(on_device.rule, prices.Numbers, prices.Looked, prices.Columns, prices.FLAGS)
    known = dict(ROWS=rows, BLOCK=block, RULES=rules, LEAST_CURVED=1e-2)
    constants = {k: v for k, v in known.items() if k in kernel.arg_names}
    named = (*of_prices.Entries._fields, *of_prices.Matrices._fields, *kernel.arg_names)
    types = {each: "*fp64" for each in named if each.endswith("_at")} | dict(per_matrix="i32")
    options = gpu.options_of(warps, gpu_doubles.REGISTERS)
    found, _ = compiled(kernel, sm, warps, options, types=types, **constants)
    assert found["STACK"] == found["LOCAL"] == 0
    assert found["LDL, STL"] == 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "evaluate" else pytest.mark.full)
        for name in (
            *("statistics", "begin", "evaluate", "settle", "weights"),
            *("weigh_back", "slope_back", "gradients"),
        )
    ],
)
def test_parts_compile(name, compiled):
    kernel = getattr(many_programs, name)
    known = dict(KIND=0, FIRST=False, PART=8192, PARTS=128, BLOCK=512)
    constants = {k: v for k, v in known.items() if k in kernel.arg_names}
    found, _ = compiled(kernel, 90, 4, **constants)
    assert found["STACK"] == found["LOCAL"] == 0


@pytest.mark.parametrize("n", [pytest.param(256, marks=pytest.mark.full), 4096])
@pytest.mark.parametrize(
    ("name", "what", "capability"),
    [
        pytest.param(name, what, sm, marks=() if (name, sm) == ("others", 80) else pytest.mark.full)
        for sm in (80, 90)
        for name, what in (
            ("tally", "COVARIANCE"),
            ("multiply", "COVARIANCE"),
            ("others", "COVARIANCE"),
            *(("write", what) for what in ("LOG_COUNT", "TAILS", "MARGINALS", "COVARIANCE")),
        )
    ],
)
def test_subsets_compile_to_registers_alone(name, what, n, capability, compiled):
    kernel = getattr(programs, f"{name}_parts")
    part, parts, warps = gpu_subsets.shape_of(n)
    known = dict(PART=part, PARTS=max(gpu_subsets.LEAST, parts), LANES=32 * warps)
    known |= dict(WHAT=getattr(contract, what))
    constants = {k: v for k, v in known.items() if k in kernel.arg_names}
    found, _ = compiled(kernel, capability, warps, gpu_subsets.OPTIONS, sums="*fp64", **constants)
    assert found["STACK"] == found["LOCAL"] == 0
    assert found["LDL, STL"] == 0


def jitted():
    """The functions that Triton compiles, of all modules."""
    for found in pkgutil.walk_packages(kofn.kernels.gpu.__path__, "kofn.kernels.gpu."):
        module = importlib.import_module(found.name)
        for one in vars(module).values():
            if isinstance(one, triton.JITFunction) and one.__module__ == found.name:
                yield one


EVERY_FUNCTION = list(jitted())


@pytest.mark.parametrize("function", EVERY_FUNCTION, ids=lambda one: one.__name__)
def test_a_second_launch_finds_globals_as_they_were(function):
    """Triton compares them by their values, so a NaN would refuse every launch but the first."""
    assert function.cache_key
    for (name, _), (value, _) in function.used_global_vals.items():
        assert value == value, name


def test_each_formula_has_a_name_of_its_own():
    """Triton knows a function by its module and name: the quantile of one link was another's."""
    every = {
        one
        for of in (formulas.tail, formulas._density, formulas._quantile)
        for name, one in of.fn.__globals__.items()
        if name.rpartition("_")[2].isdecimal()
    }
    names = {(one.fn.__module__, one.fn.__qualname__) for one in every}
    assert len(names) == len(every) > len(formulas.SERVED)


def test_shapes():
    """Every entry has its place; powers of 2; no more threads than a block may have."""
    for n in (1, 2, 15, 16, 17, 128, 129, 1000, 1024, 5000, 32_768):
        shape = gpu.shape_of(n)
        assert shape.rows * shape.block >= 128
        assert shape.block & (shape.block - 1) == 0
        assert shape.wide >= shape.block
        assert 1 <= shape.warps <= 16
    for n in (32_769, 100_000, 2**20, 2**20 + 1, 2**25):
        part, parts = gpu.parts_of(n)
        assert (parts - 1) * part < n <= parts * part
        assert parts <= 256
    for n in (1, 256, 257, 2048, 2049, 2**18, 2**18 + 1, 2**25):
        part, parts, _ = gpu_subsets.shape_of(n)
        assert (parts - 1) * part < n <= parts * part
        assert parts <= 128


def test_nothing_of_it_is_imported_for_a_cpu():
    code = """
import sys, torch
from kofn import soft_topk
soft_topk(torch.ones(3), 1)
assert not [name for name in sys.modules if name.startswith("kofn.kernels.gpu.rows.launch")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_which_tensors_are_served(monkeypatch):
    """All on NVIDIA's devices from 2020 on, float64 for few operations; none is needed to ask."""
    import torch

    from kofn import kernels
    from kofn.kernels import gpu as backend

    class Fake:
        def __init__(self, dtype):
            self.device, self.dtype, self.is_cpu = torch.device("cuda", 0), dtype, False

    for version, capability, dtype, served in (
        ("13.0", (9, 0), "torch.float32", True),
        ("13.0", (9, 0), "torch.bfloat16", True),
        ("13.0", (9, 0), "torch.float64", False),
        ("13.0", (7, 5), "torch.float32", False),
        (None, (9, 0), "torch.float32", False),
    ):
        monkeypatch.setattr(torch.version, "cuda", version)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        backend._is_supported.cache_clear()
        assert (
            kernels.serving_of("rows", Fake(dtype), "torch", kofn.links.logistic) is gpu
        ) == served
        assert (kernels.serving_of("subsets", Fake(dtype), "torch") is gpu_subsets) == served
        asked = "rows", Fake(dtype), "torch", kofn.links.logistic
        for operation, of_doubles in (("weights", gpu_doubles), ("gap", None)):
            found = kernels.serving_of(*asked, operation=operation)
            assert found is (gpu if served else of_doubles if dtype == "torch.float64" else None)
    backend._is_supported.cache_clear()
