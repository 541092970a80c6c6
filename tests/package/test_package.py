"""What importing kofn costs and gives."""

import os
import subprocess
import sys
from types import ModuleType

import kofn
from support import LINKS


def run(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    ).stdout


def test_importing_kofn_imports_no_framework():
    code = "import sys, kofn; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = set(run(code).split())
    assert not loaded & {
        "torch",
        "jax",
        "jaxlib",
        "numba",
        "scipy",
        "sklearn",
        "matplotlib",
        "typer",
    }


def test_importing_kofn_imports_little_of_numpy():
    """numpy.ma alone was a quarter of the import."""
    assert "False" in run("import sys, kofn; print('numpy.ma' in sys.modules)")


def test_importing_kofn_imports_little_of_the_standard_library():
    """hashlib alone, which loads OpenSSL, was a tenth of the import."""
    code = "import sys, numpy; known = {*sys.modules}; import kofn; print(*{*sys.modules} - known)"
    others = {name for name in run(code).split() if name.partition(".")[0] != "kofn"}
    assert others <= {"__future__", "copy", "dataclasses", "signal", "threading", "zlib"}


def test_numpy_alone_is_enough():
    """The whole NumPy path runs where torch and jax cannot be imported."""
    code = f"""
import sys
sys.modules["torch"] = sys.modules["jax"] = None
import numpy as np
from kofn import entmax, fenchel_young_loss, soft_topk
x = np.array([2.0, 1.0, 0.0])
for link in {LINKS}:
    assert abs(soft_topk(x, 2, link=link).sum() - 2) < 1e-12
    assert fenchel_young_loss(x, np.array([1.0, 0, 0]), link=link) >= 0
"""
    run(code)


def test_importing_kofn_costs_little_beyond_numpy(tmp_path):
    """0.2 s in all on a laptop, of which NumPy takes most. Counted in calls of functions, which no
    other program on the machine disturbs; with byte code on disk, as after any installation."""
    on_disk = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    code = """
import sys
calls = [0, 0]
which = 0
def count(frame, event, argument):
    calls[which] += event.endswith("call")
sys.setprofile(count)
import numpy
which = 1
import kofn
sys.setprofile(None)
print(calls[1] / calls[0])
"""
    assert min(float(run(code, **on_disk)) for _ in range(2)) < 0.3


PUBLIC_MODULES = {"classic", "estimators", "links", "losses", "metrics", "projections", "schedules"}


def test_all_is_exact_and_complete():
    public = {name for name in vars(kofn) if not name.startswith("_")}
    public |= {*kofn._LATER, *PUBLIC_MODULES}  # loaded when they are first used
    # A room that is imported becomes an attribute of the package; few of them are its face.
    rooms = {
        name
        for name in public
        if isinstance(getattr(kofn, name), ModuleType) and name not in PUBLIC_MODULES
    }
    assert set(kofn.__all__) == public - rooms
    assert len(kofn.__all__) == len(set(kofn.__all__))
    for name in kofn.__all__:
        assert getattr(kofn, name).__doc__


def test_version_is_the_one_installed():
    from importlib.metadata import version

    assert version("kofn") == kofn.__version__


def test_names_are_loaded_when_a_compiled_function_uses_them_first():
    """What is loaded late is loaded while PyTorch's compiler traces, without a break."""
    code = (
        "import sys, torch, kofn\n"
        "torch.set_num_threads(1)\n"
        "late = {'kofn.losses', 'kofn.distributions.k_subset', 'kofn.maps.ordered.largest'}\n"
        "assert not late & set(sys.modules)\n"
        "def uses(x):\n"
        "    first = kofn.soft_topk(x, 2)\n"
        "    loss = kofn.losses.fenchel_young_loss(x, kofn.topk(x, 2).values.sum() * 0 + x * 0)\n"
        "    return first + loss + kofn.KSubset(x, 2).entropy()\n"
        "x = torch.arange(4.0)\n"
        "compiled = torch.compile(uses, fullgraph=True, backend='eager')(x)\n"
        "assert late < set(sys.modules)\n"
        "torch.testing.assert_close(compiled, uses(x))"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_pytorch_s_compiler_is_not_imported_for_eager_calls():
    """It takes seconds: more than all the rest of kofn beside PyTorch."""
    code = (
        "import sys, torch, kofn\n"
        "x = torch.arange(4.0, requires_grad=True)\n"
        "kofn.soft_topk(x, 2).sum().backward()\n"
        "kofn.KSubset(x.detach(), 2).sample(rng=torch.Generator())\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
