"""Check an installed kofn in a few seconds: `python smoke.py torch -jax -numba`.

A name says what has to be there, a name after a minus what must not be; `-kernels` says that this
kofn has no library of kernels. Run it from any folder but
the checkout, so that the installed package is found.
"""

import importlib.util
import subprocess
import sys
import sysconfig
import warnings
from importlib.metadata import files, version
from pathlib import Path

import numpy as np

import kofn

SCORES = np.array([2.0, 1.0, 0.5, -1.0])
WEIGHTS = np.array([0.793211893, 0.585257908, 0.461177241, 0.160352958])


def check_packages(names: list[str]) -> None:
    for name in names:
        there = importlib.util.find_spec(name.lstrip("-")) is not None
        assert there != name.startswith("-"), f"{name}: {'there' if there else 'not there'}"


def check_files() -> None:
    """The package is the installed one, and whole."""
    site = Path(sysconfig.get_paths()["purelib"])
    assert Path(kofn.__file__).is_relative_to(site), kofn.__file__
    assert version("kofn") == kofn.__version__
    listed = {str(path) for path in files("kofn") or ()}
    assert "kofn/py.typed" in listed


def check_that_a_library_is_missed() -> None:
    """The first call says so, and no other."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        kofn.soft_topk(SCORES, 2)
    assert ["kofn[jit]" in str(each.message) for each in found] == [True], found


def check_that_nothing_is_compiled() -> None:
    assert not {"numba", "llvmlite", "scipy"} & {name.partition(".")[0] for name in sys.modules}


def check_numpy() -> None:
    np.testing.assert_allclose(kofn.soft_topk(SCORES, 2), WEIGHTS, atol=1e-9)
    for link in kofn.links.TABLE:
        np.testing.assert_allclose(kofn.soft_topk(SCORES, 1.5, link=link).sum(), 1.5, rtol=1e-12)
        np.testing.assert_allclose(
            kofn.soft_topk(SCORES.astype("float32"), 2, link=link).sum(), 2, rtol=1e-6
        )
    assert kofn.KSubset(SCORES, 2).sample().sum() == 2
    np.testing.assert_allclose(kofn.KSubset(SCORES, 2).marginals().sum(), 2)
    ids = np.array([0, 0, 1, 1])
    kofn.segment_soft_topk(SCORES, 1, segment_ids=ids, num_segments=2)
    assert kofn.fenchel_young_loss(SCORES, np.array([1.0, 0, 0, 0])) > 0


def check_kernels(*, there: bool) -> None:
    """Kernels serve NumPy's rows, or array code gives the weights."""
    from kofn import kernels

    assert (kernels.found("rows", SCORES, "numpy") is not None) == there


def check_torch() -> None:
    import torch

    scores = torch.tensor(SCORES, requires_grad=True)
    kofn.soft_topk(scores, 2, hard=True)[1].backward()
    assert scores.grad is not None
    assert abs(float(scores.grad.sum())) < 1e-12
    assert float(scores.grad[1]) > 0.1
    router = kofn.nn.TopKRouter(8, 4, k=2)
    assert [tuple(each.shape) for each in router(torch.zeros(3, 8))] == [(3, 4), (3, 2), (3, 2)]


def check_no_torch() -> None:
    code = "import kofn; kofn.nn"
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install "kofn[torch]"' in refused.stderr, refused


def check_jax(*, kernels: bool) -> None:
    import jax

    def second(scores: jax.Array) -> jax.Array:
        return kofn.soft_topk(scores, 2)[1]

    program = jax.jit(second).lower(jax.numpy.asarray(SCORES)).as_text()
    assert ("kofn_rows" in program) == kernels, "XLA calls no kernel"
    slopes = jax.jit(jax.grad(second))(jax.numpy.asarray(SCORES))
    assert float(slopes[1]) > 0.1
    assert abs(float(slopes.sum())) < 1e-5


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the `kofn` that was installed beside this Python."""
    found = Path(sysconfig.get_path("scripts")) / "kofn"
    return subprocess.run([found, *arguments], capture_output=True, text=True, input="2 1 0.5 -1")


def check_command(*, there: bool) -> None:
    if not there:
        refused = command("--version")
        assert refused.returncode == 2, refused
        assert 'pip install "kofn[cli]"' in refused.stderr, refused
        return
    assert command("--version").stdout == f"kofn {kofn.__version__}\n"
    applied = command("apply", "-k", "2")
    np.testing.assert_allclose([float(w) for w in applied.stdout.split(",")], WEIGHTS, atol=1e-9)


def check_command_without_torch() -> None:
    compared = command("compare", "--json", "-k", "1")
    assert compared.returncode == 0, compared
    assert '"perturbed_argmax"' in compared.stdout
    refused = command("select")
    assert refused.returncode == 2, refused
    assert 'kofn select needs PyTorch; install it with: pip install "kofn[cli,torch]"' in (
        refused.stderr
    )


def main(names: list[str]) -> None:
    alone = "-kernels" in names
    names = [name for name in names if name != "-kernels"]
    check_packages(names)
    check_files()
    if alone:
        check_that_a_library_is_missed()
    check_numpy()
    check_kernels(there=not alone)
    check_that_nothing_is_compiled()
    if "torch" in names:
        check_torch()
    if "-torch" in names:
        check_no_torch()
    if "jax" in names:
        check_jax(kernels=not alone)
    check_command(there="typer" in names)
    if {"typer", "-torch"} <= {*names}:
        check_command_without_torch()
    print(f"kofn {kofn.__version__} works on Python {sys.version.split()[0]}: {' '.join(names)}")


if __name__ == "__main__":
    main(sys.argv[1:])
