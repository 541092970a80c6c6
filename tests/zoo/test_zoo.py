"""Every function of the table of calls with every form of arrays: right, or refused by name.

In the ordinary run each function meets a third of the forms, and each form a third of the
functions, in one of the frameworks in turn. For JAX, which compiles each pair for seconds, that is
so for a few functions, without gradients. The full run has every function, form, framework and
dtype, for all arguments at once and for each alone.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from calls import CALLS, FLOAT, Call
from jax_programs import let_go_of_many
from zoo import of_jax, of_numpy, of_torch, sizes
from zoo.form import Wrong, hold

FORMS = {"numpy": of_numpy.FORMS, "torch": of_torch.FORMS, "jax": of_jax.FORMS}
DTYPES = ("float64", "float32")
EVERY_JAX = 37


def tried(call, forms, dtypes, each_alone=False):
    """What is wrong with a call, by form, and how many pairs were tried."""
    pairs = {}
    for form in forms:
        names = form.arguments_of(call)
        choices = [names] * bool(names)
        if each_alone and form.wide and len(names) > 1:
            choices += [(name,) for name in names]
        for chosen in choices:
            for dtype in dtypes:
                what = f"{form.name}, {dtype}, {', '.join(chosen)}"
                pairs[what] = partial(hold, call, form, chosen, dtype)
    return failed(pairs), len(pairs)


def failed(checks):
    wrong = {}
    for what, check in checks.items():
        try:
            check()
        except Exception as error:
            said = str(error) if isinstance(error, Wrong) else repr(error)
            wrong[what] = said.partition("\n")[0][:300]
        let_go_of_many()
    return wrong


def named(wrong):
    return "\n".join(f"{what}: {said}" for what, said in wrong.items())


def frameworks_of(call, place):
    return [f for f in call.frameworks if f != "jax" or place % EVERY_JAX == 0]


def met(call, place):
    """The forms that a call meets in the ordinary run, each in one framework."""
    by_name = {}
    for framework in frameworks_of(call, place):
        for form in FORMS[framework]:
            by_name.setdefault(form.name, []).append(form)
    turns = [*enumerate(by_name.values())][place % 3 :: 3]
    forms = [each[(place // 3 + i) % len(each)] for i, each in turns]
    return [replace(form, learned=False) if form.framework == "jax" else form for form in forms]


every_call = pytest.mark.parametrize(
    ("place", "call"), list(enumerate(CALLS)), ids=[call.name for call in CALLS]
)


@every_call
def test_each_form_is_met_in_turn(place, call):
    forms = met(call, place)
    wrong, _ = tried(call, forms[::2], DTYPES[:1])
    wrong |= tried(call, forms[1::2], DTYPES[1:])[0]
    assert not wrong, named(wrong)


@pytest.mark.full
@pytest.mark.parametrize("framework", FORMS)
@every_call
def test_every_pair(place, call, framework):
    if framework in call.frameworks:
        wrong, count = tried(call, FORMS[framework], DTYPES, each_alone=True)
        print(count, "pairs")
        assert not wrong, named(wrong)


def of_sizes(call, framework):
    """Checks of arrays with little in them, and of numbers at the ends of types."""
    checks = {}
    for dtype in DTYPES:
        checks[f"no rows, {dtype}"] = partial(sizes.hold_empty, call, framework, dtype, 0)
        checks[f"one number, {dtype}"] = partial(sizes.hold_one_number, call, framework, dtype)
        # The cost of the examples of estimators has three entries.
        if ".estimators." not in call.name:
            checks[f"no entries, {dtype}"] = partial(sizes.hold_empty, call, framework, dtype, -1)
    # Modules have other parameters in float32 than in float64.
    if call.kind_of(call.first) != FLOAT or ".nn." in call.name:
        return checks | of_ends(call, framework)
    # What a whole row of rounded numbers sums to: a matrix may have no assignment, a point may lie
    # off the simplex.
    if "soft_assignment" not in call.name and call.name != "kofn.RelaxedOneHot.to_torch":
        for dtype in ("float16", "bfloat16"):
            checks[dtype] = partial(sizes.hold_half, call, framework, dtype)
    if not call.random:
        checks["subnormal"] = partial(sizes.hold_subnormal, call, framework)
    return checks | of_ends(call, framework)


def of_ends(call, framework):
    types = of_numpy.INTEGERS if call.integers else ()
    return {f"ends of {each}": partial(sizes.hold_ends, call, framework, each) for each in types}


@every_call
def test_sizes_and_ends(place, call):
    served = [name for name in call.frameworks if name != "jax"]
    checks = of_sizes(call, served[place % len(served)])
    wrong = failed({what: checks[what] for what in [*checks][place % 2 :: 2]})
    assert not wrong, named(wrong)


@pytest.mark.full
@pytest.mark.parametrize("framework", FORMS)
@every_call
def test_sizes_and_ends_in_every_framework(place, call, framework):
    if framework in call.frameworks:
        wrong = failed(of_sizes(call, framework))
        assert not wrong, named(wrong)


def reads_memory(x):
    """As code does that takes the address of an array and no strides."""
    base = x if x.base is None else x.base
    return np.frombuffer(base.tobytes(), x.dtype)[: x.size].reshape(x.shape)


def writes(x):
    x[0] = x[1]
    return x[1]


@pytest.mark.parametrize(
    ("function", "form"),
    [
        (lambda x: x.view(x.dtype.newbyteorder("=")) + 0.0, "other byte order"),
        (reads_memory, "backwards"),
        (writes, "with gaps"),
        (lambda x: x + 0.0 if x.flags.aligned else x.astype("f4"), "unaligned"),
        (lambda x: x + 0.0, "objects"),
        (lambda x: np.sqrt(x), "text"),
    ],
)
def test_a_fault_is_seen(function, form):
    x = np.array([[4.0, 1.0], [2.0, 9.0]])
    call = Call("planted", function, {"x": x}, frameworks=("numpy",))
    form = next(each for each in FORMS["numpy"] if each.name == form)
    with np.errstate(all="ignore"), pytest.raises(Wrong):
        hold(call, form, ("x",), "float64")
