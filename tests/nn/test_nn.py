"""kofn.nn as a whole: when it is loaded, and what it says without PyTorch."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kofn
from places import ROOT


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_it_is_loaded_on_first_use_and_names_the_extra():
    code = """
import sys, kofn
assert "nn" in dir(kofn) and "kofn.nn" not in sys.modules
sys.modules["torch"] = None
for use in (lambda: kofn.nn, lambda: __import__("kofn.nn")):
    try:
        use()
    except ImportError as error:
        print(error)
try:
    kofn.nm
except AttributeError as error:
    print(error)
"""
    needed = 'kofn.nn needs PyTorch; install it with: pip install "kofn[torch]". JAX and NumPy '
    needed += "arrays have the functions of kofn, which its modules call: docs/guides shows them\n"
    assert run(code) == 2 * needed + "module 'kofn' has no attribute 'nm'\n"


def test_all_is_exact():
    from kofn import nn

    assert kofn.nn is nn
    assert len(set(nn.__all__)) == len(nn.__all__)
    for name in nn.__all__:
        assert getattr(nn, name).__doc__
        assert getattr(nn, name).__module__.startswith("kofn.nn.")


def test_classes_are_short():
    root = Path(kofn.__file__).parent
    for path in (*root.glob("nn/**/*.py"), *root.glob("integrations/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                assert node.end_lineno - node.lineno + 1 < 120, node.name


@pytest.mark.full
def test_the_pictures_are_drawn(tmp_path, monkeypatch):
    path = ROOT / "docs" / "make_nn_figures.py"
    spec = importlib.util.spec_from_file_location("make_nn_figures", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "STEPS", 2)
    monkeypatch.setattr(script.moe, "STEPS", 2)
    with torch.random.fork_rng():
        script.draw_attention(tmp_path / "attention.png")
        script.draw_router(tmp_path / "router.png")
    assert all(image.stat().st_size > 5_000 for image in tmp_path.glob("*.png"))


def test_modules_are_drawn_on_a_device_without_memory_first():
    for make in (
        lambda **how: kofn.nn.TopKRouter(16, 8, 2, balance=1e-3, **how),
        lambda **how: kofn.nn.SparseAttention(16, 4, learned=("alpha",), **how),
        lambda **how: kofn.nn.TopKSAE(16, 40, 4, selection="batch", learned_k=True, **how),
        lambda **how: kofn.nn.SoftTopK(16, 4, schedule=9, learned_k=True, **how),
    ):
        net = make(device="meta", dtype=torch.bfloat16)
        assert {each.device.type for each in (*net.parameters(), *net.buffers())} == {"meta"}
        real = make()
        net.load_state_dict(real.state_dict(), assign=True)
