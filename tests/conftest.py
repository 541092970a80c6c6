"""Settings and fixtures shared by every test file."""

import os

# Compiling takes longer than running here; the answers are the same.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import hypothesis
import jax
import numpy as np
import pytest
import torch

from support import Framework

jax.config.update("jax_enable_x64", True)  # float64 rows are tested beside float32 ones
torch.set_num_threads(1)

hypothesis.settings.register_profile(
    "kofn", deadline=None, derandomize=True, max_examples=25, print_blob=True
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



@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the full run what only repeats on JAX: XLA compiles each case anew, for seconds."""
    for item in items:
        given = getattr(item, "callspec", None)
        if given is None or "jax" not in given.params.values():
            continue
        link, dtype = given.params.get("link", "logistic"), given.params.get("dtype", "float32")
        thorough = item.path.stem in ("test_accuracy", "test_laws", "test_transforms")
        short = given.params.get("n", 8) == 8 and dtype in ("float32", "float64")
        if not short or (not thorough and link not in ("logistic", "linear")):
            item.add_marker(pytest.mark.full)
