"""The library of compiled kernels: every function for each level of a platform, linked to one file.

    python -m wheels.library                        of this machine, where kofn finds it
    python -m wheels.library linux-aarch64 --out F  of a platform, as a file

Functions come as LLVM's intermediate code from `shipped.xz`, if they are as the sources are, else
from Numba. LLVM makes objects of them, and zig, or this machine's own C compiler, a library.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from kofn.kernels.cpu import every
from kofn.kernels.cpu.compiler import machine, now
from kofn.kernels.cpu.compiler.target import served
from kofn.kernels.cpu.rows.layout import SERVED
from kofn.kernels.cpu.runtime import library
from kofn.kernels.cpu.runtime.native import Code
from kofn.kernels.cpu.runtime.sources import digest
from kofn.kernels.cpu.xla import header
from kofn.metrics import entropies as entropies  # whose passes are compiled, too
from kofn.operations import declared as declared  # likewise
from wheels.platforms import PLATFORMS, Platform, c_compiler, own

KERNELS = Path(library.__file__).parents[1]
SOURCES = "runtime/processor.c", "xla/handler.c"
ROOT = Path(__file__).parents[1]
OBJECTS = ROOT / "build" / "kernels"
"""Objects that need not be compiled again, named after what they are made of."""


def build(
    name: str,
    out: Path,
    levels: Iterable[str] | None = None,
    jobs: int = 0,
    tell: Callable[[str], None] = lambda _: None,
    handler: bool = True,
) -> None:
    """Make the library of a platform, whole or not at all; of all its levels, or of some.

    Without the handler, programs of JAX are array code, and jaxlib is not needed. `tell` gets a
    line of progress now and then.
    """
    platform = PLATFORMS[name]
    chosen = tuple(platform.levels if levels is None else levels)
    unknown = sorted({*chosen} - {*platform.levels})
    if unknown:
        allowed = ", ".join(map(repr, platform.levels))
        raise ValueError(f"levels of {name} must be of {allowed}; got {', '.join(unknown)}")
    (OBJECTS / platform.triple).mkdir(parents=True, exist_ok=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    tasks = [(name, level, code) for code in _codes() for level in chosen]
    with ProcessPoolExecutor(jobs or os.cpu_count()) as pool:
        objects = []
        for each in pool.map(_object, *zip(*tasks, strict=True), chunksize=8):
            objects.append(each)
            if len(objects) % (len(tasks) // 8) == 0:
                tell(f"kofn: {len(objects)} of {len(tasks)} functions are compiled")
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        place = Path(folder)
        (place / "layout.h").write_text(header.header(), encoding="utf-8")
        (place / "functions.h").write_text(_digests(), encoding="utf-8")
        made = place / platform.library
        _link(name, platform, chosen, place, objects, made, handler)
        os.replace(made, out)


def _codes() -> list[Code]:
    return every.functions(SERVED, (4, 8))


def _object(name: str, level: str, function: Code) -> Path:
    """Return a function compiled for a level, as a file."""
    platform = PLATFORMS[name]
    level_of = platform.levels[level]
    target = _target(platform.triple, *level_of)
    symbol = function.symbol
    code = machine.for_target(now.translated(function), platform.triple, target)
    known, made_by = library.name_of(symbol, level), Path(machine.__file__).read_bytes()
    storage = ["dllexport"] if "windows" in platform.triple else []
    parts = machine.for_level(code, *level_of), *level_of, llvmlite.__version__, *storage
    path = (
        OBJECTS
        / platform.triple
        / f"{known}-{digest(made_by, *(part.encode() for part in parts))}.o"
    )
    if not path.exists():
        module = machine.optimised(code, symbol, machine.Target(target, *level_of))
        if any("dynamic.globals" in each.name for each in module.global_variables):
            raise RuntimeError(f"{symbol} must not read objects of the process that translated it")
        compiled = module.get_function(symbol)
        compiled.name = known
        if storage:  # what C exports has marks there, and then a linker exports nothing else
            (compiled.storage_class,) = storage
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(target.emit_object(module))
        os.replace(temporary, path)
    return path


def _digests() -> str:
    """Return the functions with their digests, as a text of C."""
    lines = [f"{code.symbol} {now.digest(code)}" for code in _codes()]
    return "#define KOFN_FUNCTIONS " + " \\\n  ".join(f'"{line}\\n"' for line in lines) + "\n"


def _target(triple: str, cpu: str, features: str) -> llvm.TargetMachine:
    machine.know_all_targets()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default"
    )


def _headers() -> Path:
    """Return the folder of the headers that jaxlib ships."""
    found = find_spec("jaxlib")
    if found is None or found.origin is None:
        raise RuntimeError(
            "jaxlib, which has a header that is needed, is not installed; KOFN_HANDLER=none builds "
            "a library that JAX's programs cannot call"
        )
    return Path(found.origin).parent / "include"


def _link(
    name: str,
    platform: Platform,
    levels: Sequence[str],
    place: Path,
    objects: Sequence[Path],
    made: Path,
    handler: bool = True,
) -> None:
    sources = [str(KERNELS / source) for source in SOURCES[: 1 + handler]]
    quoted = {
        "KOFN_SOURCES": library.made_of(),
        "KOFN_HANDLER": header.made_of() if handler else "",
        "KOFN_LEVELS": " ".join(levels),
    }
    options = [
        *(f'-D{key}="{value}"' for key, value in quoted.items()),
        *(f"-I{folder}" for folder in (place, *([_headers()] if handler else []))),
        *("-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-s", "-o", str(made)),
    ]
    listed = place / "objects"
    listed.write_text("\n".join(map(str, objects)), encoding="utf-8")
    of_system: list[str] = []
    if name.startswith("linux"):
        of_system = ["-lm"]
    elif name.startswith("macos"):  # its name for programs, which else has the path it is made at
        of_system = [f"-Wl,-install_name,@rpath/{platform.library}"]
    _run([*_compiler(name, platform.target), *options, *sources, f"@{listed}", *of_system])


def is_portable() -> bool:
    """Return whether libraries serve older systems than this one: whether zig is installed."""
    return find_spec("ziglang") is not None


def _compiler(name: str, target: str) -> list[str]:
    """Return the command of a C compiler for a platform."""
    if is_portable():
        return [sys.executable, "-m", "ziglang", "cc", "-target", target]
    command = c_compiler()
    if command is None or name != own():
        raise RuntimeError(
            f"a library for {name} needs zig; install it with: pip install ziglang"
            + (" (or a C compiler)" if name == own() else "")
        )
    return command


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:6])} … failed:\n{done.stderr[-4000:]}")


def own_levels(name: str) -> list[str]:
    """Return the highest level of this machine, which code for others is not tried with here."""
    reached = [library.LEVELS[level] for level in served()]
    return [level for level in PLATFORMS[name].levels if level in reached][-1:] or [""]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a library, as the command line says."""
    parser = argparse.ArgumentParser(description="Make the library of compiled kernels.")
    parser.add_argument("platform", nargs="?", default=own(), choices=[*PLATFORMS])
    parser.add_argument("--out", type=Path, help="the file; this machine's: where kofn finds it")
    parser.add_argument("--levels", nargs="*", help="only these, such as v3; all by default")
    parser.add_argument(
        "--own", action="store_true", help="only this machine's own level, and those of --levels"
    )
    parser.add_argument("--no-handler", action="store_true", help="without what JAX calls")
    parser.add_argument("--jobs", type=int, default=0, help="processes; one per processor")
    chosen = parser.parse_args(arguments)
    if chosen.platform is None:
        parser.error(f"kofn has no library for {sysconfig.get_platform()}")
    if chosen.out is None and chosen.platform != own():
        parser.error(f"--out must name a file for {chosen.platform}, which is not this machine's")
    out = chosen.out or library.FILE
    levels = chosen.levels
    if chosen.own:
        levels = [*dict.fromkeys([*(levels or []), *own_levels(chosen.platform)])]
    build(chosen.platform, out, levels, chosen.jobs, handler=not chosen.no_handler)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
