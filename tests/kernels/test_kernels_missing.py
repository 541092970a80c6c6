"""Without a library and Numba array code answers, and the first call that it slows down says so."""

import os
import subprocess
import sys
import textwrap

import pytest

from support import full_but

WITHOUT_NUMBA = """
    import importlib.metadata
    import sys
    import warnings

    installed = importlib.metadata.version

    def version(name):
        if name in ("numba", "llvmlite"):
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    importlib.metadata.version = version
    sys.modules.update(numba=None, llvmlite=None)

    from pathlib import Path
    from kofn.kernels.cpu.runtime import library

    library.FILE = Path("none")

    def heard(call):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            call()
        return [(each.category, str(each.message)) for each in found]

    import numpy as np
    import kofn
    assert heard(lambda: kofn.links.logistic) == []  # nor did the import warn: -W error
"""
FIRST = {
    "numpy": "kofn.soft_topk(np.arange(5.0), 2)",
    "hard": "kofn.hard_topk(np.arange(5.0), 2)",
    "subsets": "kofn.KSubset(np.arange(5.0), 2).marginals()",
    "segments": "kofn.segment_softmax(np.arange(5.0), segment_ids=np.array([0, 1, 0, 1, 1]))",
    "knapsack": "kofn.soft_knapsack(np.arange(5.0), np.ones(5), 2)",
    "torch": "kofn.soft_topk(torch.arange(5.0), 2)",
    "jax": "jax.jit(lambda x: kofn.soft_topk(x, 2))(jax.numpy.arange(5.0))",
    "compiled": "torch.compile(lambda x: kofn.soft_topk(x, 2), fullgraph=True, backend='eager')"
    "(torch.arange(5.0))",
}


def run(code, **environment):
    whole = textwrap.dedent(WITHOUT_NUMBA) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", whole],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize("name", full_but(("segments", "torch"), FIRST))
def test_the_first_call_without_numba_says_so_and_no_other(name):
    framework = {"compiled": "torch"}.get(name, name)
    load = f"import {framework}" if framework in ("torch", "jax") else ""
    run(f"""
    {load}
    first = heard(lambda: {FIRST[name]})
    warned = [message for category, message in first if category is RuntimeWarning]
    assert len(warned) == 1, first
    assert "kofn[jit]" in warned[0] and "KOFN_KERNELS=reference" in warned[0], warned
    assert heard(lambda: {FIRST["numpy"]}) == heard(lambda: {FIRST["hard"]}) == []
    np.testing.assert_allclose(kofn.soft_topk(np.arange(5.0), 2).sum(), 2)
    """)


@pytest.mark.parametrize(
    ("before", "environment"),
    [
        ("", {"KOFN_KERNELS": "reference"}),
        ("missing.sys = types.SimpleNamespace(platform='emscripten')", {"KOFN_KERNELS": "on"}),
    ],
)
def test_it_is_not_said_where_it_is_meant_or_cannot_be_helped(before, environment):
    calls = [FIRST[name] for name in ("numpy", "hard", "subsets", "segments", "knapsack")]
    modules = "import types; from kofn.kernels import missing"
    run(f"{modules}\n{before}\nassert heard(lambda: [{', '.join(calls)}]) == []", **environment)


@pytest.mark.usefixtures("kernels_on")
def test_another_reason_is_not_taken_for_it():
    """A release of Numba that is unknown has a warning of its own, from where it is tried."""
    run("""
    from kofn.kernels import missing

    missing.note(ImportError("Numba 9.9"))
    missing.note(ImportError("no jax.ffi", name="jax.ffi"))
    assert heard(missing.tell) == []
    """)


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize(
    ("file", "why"), [("none", "no library of kernels"), (__file__, "cannot be loaded")]
)
def test_the_warning_says_why_there_is_no_library(file, why):
    run(f"""
    library.FILE = Path({file!r})
    ((_, said),) = heard(lambda: {FIRST["numpy"]})
    assert {why!r} in said and "Numba is not installed" in said, said
    """)


@pytest.mark.usefixtures("kernels_on")
def test_jax_is_told_that_numba_does_not_serve_it():
    program = """
import warnings
from pathlib import Path
from kofn.kernels.cpu.runtime import library
library.FILE = Path("none")
import jax, kofn
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    for n in (5, 6):
        jax.jit(lambda x: kofn.soft_topk(x, 2))(jax.numpy.arange(float(n)))
((said,)) = [str(each.message) for each in heard if each.category is RuntimeWarning]
assert "in JAX's programs" in said and "Numba does not serve JAX" in said, said
assert "kofn[jit]" not in said, said
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
