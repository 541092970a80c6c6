"""LLVM's part of compiling: from intermediate to native code, and into this process.

It needs llvmlite alone, which is imported in a tenth of a second, Numba in most of one.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import re
import sys
from functools import cache
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from kofn.kernels.cpu.compiler import target as processor
from kofn.kernels.cpu.runtime.layout import ASKED, WIDTH_IF_WIDE

_engines: list[Any] = []  # the code in use is theirs


@cache
def _initialized() -> None:
    with contextlib.suppress(RuntimeError):  # releases that do it by themselves refuse
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def know_all_targets() -> None:
    """Let LLVM compile for other systems and processors, too."""
    _initialized()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def for_target(text: str, triple: str, target: Any) -> str:
    """Return a module that was translated here as one of another system."""
    text = re.sub('target triple = "[^"]*"', f'target triple = "{triple}"', text)
    return re.sub(
        'target datalayout = "[^"]*"', f'target datalayout = "{target.target_data}"', text
    )


_WIDE = '"prefer-vector-width"="512"'


def for_level(text: str, cpu: str, features: str) -> str:
    """Return a module with the answers to what it asks about its processor.

    Its quotients become divisions where these are the faster ones: in registers of 256 bits a
    division of eight numbers costs less than the processor's estimate of 1/b with its four further
    operations, which wait for each other. In others it does not.
    """
    has = features_of(cpu, features)
    for name, needed in ASKED.items():
        answer = "true" if needed & has else "false"
        body = f"define internal i1 @{name}() alwaysinline {{ ret i1 {answer} }}"
        text, found = re.subn(rf"declare i1 @{name}\(\)[^\n]*", body, text)
        if not found and f"@{name}(" in text:
            raise RuntimeError(f"there is no declaration of {name} to answer")
    if "avx512f" in has:
        return text.replace(WIDTH_IF_WIDE, "llvm.loop.vectorize.width")
    rule = f'{_WIDE} "reciprocal-estimates"="none"'
    return text.replace(_WIDE, rule) if "avx2" in has else text


def features_of(cpu: str, features: str) -> set[str]:
    """Return the features of a processor, by LLVM's names."""
    named = {each[1:] for each in features.split(",") if each.startswith("+")}
    return named | {*processor.LEVELS.get(cpu, ())}


def without_masks(text: str) -> str:
    """Return a module that stores what it has chosen between two values as any other.

    If one is what the place holds already, LLVM makes a store under a mask of it: with registers of
    256 bits 42 operations of AMD's processors (Zen). A value that is frozen it takes as it is.
    """
    chosen = {*re.findall(r"^ *(%[\w.]+) = select (?:\w+ )*<", text, re.MULTILINE)}
    number = itertools.count()

    def frozen(found: re.Match[str]) -> str:
        kind, value = found.groups()
        name = f"%kept.{next(number)}"
        again = f"  {name} = freeze {kind} {value}\n  store {kind} {name},"
        return again if value in chosen else found.group()

    return re.sub(r"^ *store (<[^>]+>) (%[\w.]+),", frozen, text, flags=re.MULTILINE)


class Target(NamedTuple):
    """A processor to compile for."""

    machine: Any
    cpu: str
    features: str


def _target_machine() -> Any:
    _initialized()
    target = llvm.Target.from_default_triple()
    name, features = processor.target()
    # LLVM can load code into a process on x86 only without relocation.
    return target.create_target_machine(
        cpu=name,
        features=features,
        opt=3,
        reloc="static" if target.name.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )


def native(text: str, symbol: str) -> bytes:
    """Return optimised native code of a module, of which only the symbol can be called.

    The names of the functions that it calls elsewhere stand in front, up to a zero byte.
    """
    module = optimised(text, symbol)
    declared = (each.name for each in module.functions if each.is_declaration)
    elsewhere = [name for name in declared if not name.startswith("llvm.")]
    # A later process has not imported Numba, nor does compiled code here hold Python's lock.
    foreign = [name for name in elsewhere if name.startswith(("NRT_", "numba_", "Py"))]
    if foreign:
        raise RuntimeError(f"{symbol} must not call {', '.join(foreign)}")
    return "\n".join(elsewhere).encode() + b"\0" + _target_machine().emit_object(module)


def optimised(text: str, symbol: str, target: Target | None = None) -> Any:
    """Return a module as a processor should have it, by default this machine's."""
    machine, cpu, features = target or (_target_machine(), *processor.target())
    module = llvm.parse_assembly(for_level(text, cpu, features))
    hide(module, symbol)
    # Loops in the form that LLVM vectorises, before anything is unrolled.
    passes, builder = _passes(machine)
    passes.add_loop_rotate_pass()
    passes.add_instruction_combine_pass()
    passes.add_jump_threading_pass()
    passes.run(module, builder)
    passes, builder = _passes(machine)
    passes.run(module, builder)
    has = features_of(cpu, features)
    if "avx2" in has and "avx512f" not in has:
        module = llvm.parse_assembly(without_masks(str(module)))
    return module


def assembly(text: str, symbol: str) -> str:
    """Return the instructions of a module, as text."""
    return str(_target_machine().emit_assembly(optimised(text, symbol)))


def hide(module: Any, symbol: str) -> None:
    """Make everything that a module defines its own, except the symbol."""
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name != symbol:
            each.linkage = "internal"


def _passes(machine: Any) -> Any:
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization, tuning.slp_vectorization = True, False
    builder = llvm.create_pass_builder(machine, tuning)
    return builder.getModulePassManager(), builder


# C's functions of mathematics, which a process may not have made known to all, or not loaded.
_MATHEMATICS = {"linux": "libm.so.6", "darwin": "libSystem.dylib", "win32": "ucrtbase.dll"}


def _added(name: str) -> bool:
    """Make a function of mathematics known to LLVM; return whether there is one of this name."""
    try:
        function = getattr(ctypes.CDLL(_MATHEMATICS[sys.platform]), name)
    except (KeyError, OSError, AttributeError):
        return False
    llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return True


def load(code: bytes, symbol: str) -> int:
    """Return the address of what `native` returned.

    Raises:
        RuntimeError: this process lacks a function that the code calls.
    """
    names, _, binary = code.partition(b"\0")
    _initialized()
    for name in names.decode().split():
        # LLVM would end the process.
        if not (llvm.address_of_symbol(name) or _added(name)):
            raise RuntimeError(f"{symbol} calls {name}, which is not in this process")
    # An engine of its own: an interrupt leaves no symbol behind, half defined.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(binary))
    engine.finalize_object()
    address = engine.get_function_address(symbol)
    _engines.append(engine)
    return int(address)
