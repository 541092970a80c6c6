"""The platforms that have a library of kernels: how LLVM, zig and pip call each."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import sysconfig
from typing import NamedTuple

X86_64 = {"v2": ("x86-64-v2", ""), "v3": ("x86-64-v3", ""), "v4": ("x86-64-v4", "")}
"""The levels of x86-64, each with a processor and its features for LLVM."""
AARCH64 = {"": ("generic", "+neon")}
APPLE = {"": ("apple-m1", "+neon")}


class Platform(NamedTuple):
    """A system and kind of processor."""

    triple: str  # LLVM's name; objects are the same for any C library
    target: str  # zig's, with the oldest C library or system that may load it
    levels: dict[str, tuple[str, str]]
    library: str
    tags: str  # pip's, of the wheel

    @property
    def local_tag(self) -> str:
        """Return the tag of a wheel whose library is only for systems like this one."""
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")


PLATFORMS = {
    "linux-x86_64": Platform(
        "x86_64-unknown-linux-gnu",
        "x86_64-linux-gnu.2.17",
        X86_64,
        "kofn.so",
        "manylinux_2_17_x86_64.manylinux2014_x86_64",
    ),
    "linux-aarch64": Platform(
        "aarch64-unknown-linux-gnu",
        "aarch64-linux-gnu.2.17",
        AARCH64,
        "kofn.so",
        "manylinux_2_17_aarch64.manylinux2014_aarch64",
    ),
    "musl-x86_64": Platform(
        "x86_64-unknown-linux-gnu", "x86_64-linux-musl", X86_64, "kofn.so", "musllinux_1_1_x86_64"
    ),
    "musl-aarch64": Platform(
        "aarch64-unknown-linux-gnu",
        "aarch64-linux-musl",
        AARCH64,
        "kofn.so",
        "musllinux_1_1_aarch64",
    ),
    "macos-arm64": Platform(
        "arm64-apple-macosx12", "aarch64-macos.12.0", APPLE, "kofn.dylib", "macosx_12_0_arm64"
    ),
    "macos-x86_64": Platform(
        "x86_64-apple-macosx12", "x86_64-macos.12.0", X86_64, "kofn.dylib", "macosx_12_0_x86_64"
    ),
    "windows-x86_64": Platform(
        "x86_64-pc-windows-gnu", "x86_64-windows-gnu", X86_64, "kofn.dll", "win_amd64"
    ),
}


def own() -> str | None:
    """Return the name of the platform that this process runs on, or None if it has no library."""
    kinds = {"AMD64": "x86_64", "ARM64": "arm64"}
    kind = kinds.get(platform.machine(), platform.machine())
    systems = {"darwin": "macos", "win32": "windows"}
    system = systems.get(sys.platform, sys.platform)
    if system == "linux" and platform.libc_ver()[0] != "glibc":
        system = "musl"
    name = f"{system}-{kind}"
    return name if name in PLATFORMS else None


COMPILE = "linux-x86_64", "linux-aarch64", "macos-arm64", "windows-x86_64"
"""Where pip finds all that compiles a library: not on musl, nor on Intel's Macs."""


def can_compile() -> bool:
    """Return whether Numba and jaxlib have wheels for this Python."""
    ordinary = sys.implementation.name == "cpython" and not sysconfig.get_config_var(
        "Py_GIL_DISABLED"
    )
    return own() in COMPILE and ordinary and sys.version_info < (3, 15)


def c_compiler() -> list[str] | None:
    """Return the command of this machine's own C compiler, or None if there is none."""
    command = shlex.split(os.environ.get("CC") or "cc")  # it may have options, as `gcc -m64`
    return command if shutil.which(command[0]) else None
