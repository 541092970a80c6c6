"""Settings and fixtures shared by every test file."""

import gc
import itertools
import os
import re
import sys

import xla_flags

# Until all is imported: each search for garbage looks at all of it, a third of the time to collect.
if gc.isenabled():
    gc.disable()

# Compiling takes longer than running here. `make test-all` compiles as users do. Processes that
# this one starts, such as those of pytest-xdist, have the answer from it.
if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = xla_flags.of_installed()
    # Inductor would find out by programs of C++ which vectors this machine has, for twenty seconds.
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"
    # And compile its headers first, for five seconds, of which each of few programs gives back one.
    os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"

# Inductor would start a process for each core beforehand; this one compiles the few programs.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import hypothesis
import jax
import numpy as np
import pytest
import torch
from _pytest.doctest import DoctestModule

from jax_programs import let_go, let_go_of_many
from pairs import leave_to_the_full_run
from places import TESTS
from repeated_on_jax import EDGES, REPEATED
from slow import leave_to_the_slow_run
from support import Framework

# For type checkers, and of processes of its own: pytest would import them to find doctests.
collect_ignore = ["typed", "faults"]
if not os.environ.get("TRITON_INTERPRET"):  # their conftest.py imports Triton, as it is then
    collect_ignore.append("kernels/gpu/interpreted")

# Test files use functions of one another, of other folders, too.
sys.path += sorted({str(path.parent) for path in TESTS.rglob("test_*.py")} - {*sys.path})

jax.config.update("jax_enable_x64", True)  # float64 rows are tested beside float32 ones
torch.set_num_threads(1)

hypothesis.settings.register_profile(
    "kofn", deadline=None, derandomize=True, max_examples=15, print_blob=True
)
hypothesis.settings.register_profile(
    "full", parent=hypothesis.settings.get_profile("kofn"), max_examples=300
)
hypothesis.settings.load_profile(os.environ.get("KOFN_HYPOTHESIS", "kofn"))


@pytest.fixture(params=["numpy", "torch", "jax"])
def framework(request) -> Framework:
    """Each framework in turn, as ways to make an array and to read one."""
    return Framework(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def kernels_on(monkeypatch):
    """For tests of what kernels answer: on, whatever the environment says."""
    monkeypatch.delenv("KOFN_KERNELS", raising=False)


@pytest.fixture
def reference(monkeypatch):
    """Call a function with the kernels off."""

    def call(function, *arguments, **options):
        with monkeypatch.context() as patch:
            patch.setenv("KOFN_KERNELS", "reference")
            return function(*arguments, **options)

    return call


@pytest.fixture
def kernels_alone(monkeypatch):
    """Call it, and no kernel may leave a row to array code from then on."""
    from kofn.operations import by_kernel

    return lambda: monkeypatch.setattr(by_kernel, "finish", None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Draw the same numbers whichever tests have run before in this process.

    `torch.manual_seed` formats the stack for each kind of device that is not there.
    """
    torch.default_generator.manual_seed(0)


def pytest_collection_finish() -> None:
    """Keep what imports have made out of every later search for garbage, and make these rare.

    Tracing, in JAX and in PyTorch, makes objects by the million: searches took a fifth of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Look for examples in the docstrings of the package, not of its tests, which have none."""
    return [one for one in (yield) if not isinstance(one, DoctestModule)]


def asked() -> dict[str, str]:
    """What the environment asks of kofn and of Triton."""
    return {name: os.environ[name] for name in os.environ if name.startswith(("KOFN_", "TRITON_"))}


@pytest.fixture(autouse=True)
def environment_stays():
    """No test changes it for others: what runs later in this process would compile other code."""
    before = asked()
    yield
    assert asked() == before, "a test has changed the environment, perhaps by an import"


_finished = itertools.count(1)


def pytest_runtest_teardown() -> None:
    """Let go of compiled code now and then."""
    finished = next(_finished)
    if finished % 500 == 0:
        let_go()
    elif finished % 10 == 0:
        let_go_of_many()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the full run what only repeats on JAX: XLA compiles each case anew, for seconds.

    The ordinary run has every link on JAX for the sum and the gradients in float32, and one link
    for the rest: the oracle's weights, masks, infinities and NaN, shapes, losses, transforms.
    """
    for item in items:
        if item.name == "kofn.links.scalar.ScalarLink":  # its example has Numba compile a link
            item.add_marker(pytest.mark.full)
        given = getattr(item, "callspec", None)
        if given is None or "jax" not in (given.params.get(key) for key in ("framework", "name")):
            continue
        link, dtype = given.params.get("link"), given.params.get("dtype", "float32")
        every_link = item.originalname in (
            "test_weights_are_in_range_sum_to_k_and_keep_the_order",
            "test_gradients_meet_the_closed_form",
        )
        short = given.params.get("n", 8) == 8 and dtype == "float32"
        one_alpha = given.params.get("alpha", 1.1) == 1.1
        edge = item.path.stem in EDGES and not re.search(
            "nan_stays_in_its_row$|chosen_first|masked_entries_get|per_row|meets_enum|as_often",
            item.originalname,
        )
        if (
            item.originalname in REPEATED
            or edge
            or not (short and one_alpha)
            or not (every_link or link in (None, "logistic"))
        ):
            item.add_marker(pytest.mark.full)
    leave_to_the_full_run(items)
    leave_to_the_slow_run(items)
    # A worker that came upon one of them last would end long after the others.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
