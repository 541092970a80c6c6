"""The processor that kernels are compiled for: KOFN_CPU, and what its levels are."""

import os
import subprocess
import sys

import pytest

from kofn.kernels.cpu.compiler import target as processor

V3 = ",".join(f"+{each}" for each in processor.LEVELS["x86-64-v3"])


@pytest.fixture(autouse=True)
def anew():
    """The variable is read once in a process."""
    processor.target.cache_clear()
    yield
    processor.target.cache_clear()


@pytest.fixture
def level(monkeypatch):
    def choose(name):
        monkeypatch.setenv("KOFN_CPU", name)
        processor.target.cache_clear()

    return choose


def test_each_level_has_what_the_one_before_has():
    v2, v3, v4 = (set(needs) for needs in processor.LEVELS.values())
    assert v2 < v3 < v4


@pytest.mark.parametrize(
    ("features", "levels"),
    [
        ("", []),
        ("+neon,+sve,-avx2", []),
        (V3.replace("+avx2", "-avx2"), ["x86-64-v2"]),
        (V3, ["x86-64-v2", "x86-64-v3"]),
        (f"{V3},+avx512f", ["x86-64-v2", "x86-64-v3"]),
    ],
)
def test_levels_are_served_by_what_the_processor_has(features, levels, monkeypatch):
    monkeypatch.setattr(processor, "_features", lambda: features)
    assert processor.served() == levels
    assert processor.older() == levels[:-1]


def test_without_the_variable_it_is_the_machines_own(level, monkeypatch):
    level("")
    name, features = processor.target()
    assert name == processor.llvm.get_host_cpu_name()
    assert features == processor._features()
    monkeypatch.delenv("KOFN_CPU")
    processor.target.cache_clear()
    assert processor.target() == (name, features)


@pytest.mark.parametrize("value", ["x86-64-v4", "haswell", "own"])
def test_a_level_that_is_not_served_is_an_error_by_name(value, level, monkeypatch):
    level(value)
    monkeypatch.setattr(processor, "_features", lambda: V3)
    with pytest.raises(ValueError, match="KOFN_CPU must be a level.*x86-64-v3'.*got '" + value):
        processor.target()
    monkeypatch.setattr(processor, "_features", lambda: "+neon")
    with pytest.raises(ValueError, match="no level of x86-64; or unset.*got '" + value):
        processor.target()


def test_the_first_call_raises_that_error():
    program = "import kofn, numpy as np; kofn.soft_topk(np.zeros(9), 2)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "KOFN_CPU": "bogus"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 1
    assert "ValueError: KOFN_CPU must be a level" in ran.stderr
    assert "got 'bogus'" in ran.stderr
