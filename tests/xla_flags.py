"""Flags with which XLA compiles sooner, of those that the installed jaxlib knows.

XLA ends the process without an exception at a flag that it does not know, and flags come and go.
"""

import os
import subprocess
import sys
from importlib.metadata import version

SOONER = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
ALL_KNOWN = "0.10.2"
"""The jaxlib of constraints.txt, which knows them all: it need not be asked, for seconds."""


def known(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the flags that another process, which may end, takes; none if it cannot start."""
    while flags:
        done = subprocess.run(
            [sys.executable, "-c", "import jax; jax.devices()"],
            capture_output=True,
            text=True,
            env={**os.environ, "XLA_FLAGS": " ".join(flags)},
        )
        if done.returncode == 0:
            return flags
        named = [flag for flag in flags if flag in done.stderr]  # XLA names all at once
        flags = tuple(flag for flag in flags if flag not in named) if named else ()
    return flags


def of_installed() -> str:
    """Return the flags for the environment variable XLA_FLAGS."""
    return " ".join(SOONER if version("jaxlib") == ALL_KNOWN else known(SOONER))
