"""Numba's part of compiling: from Python to LLVM's intermediate code, for any processor.

Numba would optimise and compile every function by itself, and then again within each that calls
it. Here it does neither: modules are joined once all are there, and machine.py does the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types

from kofn.kernels.cpu.compiler.machine import hide
from kofn.kernels.cpu.compiler.private import codegen, cpu_target, global_compiler_lock

_TYPES = {"q": types.int64, "d": types.float64, "": types.void}

# Where Numba wants the address of native code, which there is not yet: this raises a MemoryError.
_NOWHERE = ctypes.cast(ctypes.pythonapi.PyErr_NoMemory, ctypes.c_void_p).value


class _Library(codegen.CPUCodeLibrary):
    """A function's module as it is."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def add_linking_library(self, library: Any) -> None:
        self._linking_libraries.append(library)

    def finalize(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> Any:
        return _NOWHERE


class _Codegen(codegen.JITCPUCodegen):
    _library_class: Any = _Library

    def set_env(self, name: str, env: Any) -> None:
        pass


@contextlib.contextmanager
def _unfinished() -> Iterator[Any]:
    """Have Numba keep modules as they are, without wrappers for Python; yield its context."""
    context = cpu_target.target_context
    ours = {
        "_internal_codegen": _Codegen("kofn_modules"),  # type: ignore[no-untyped-call]
        "cached_internal_func": {},
        "create_cpython_wrapper": lambda *_, **__: None,
        "create_cfunc_wrapper": lambda *_, **__: None,
    }
    before = {name: context.__dict__[name] for name in ours if name in context.__dict__}
    collecting = gc.isenabled()
    gc.disable()  # a sixth of the time: millions of small objects
    context.__dict__.update(ours)
    try:
        yield context
    finally:
        for name in ours:
            del context.__dict__[name]
        context.__dict__.update(before)
        if collecting:
            gc.enable()


def translated(
    function: Callable[..., Any], takes: str, returns: str, symbol: str, options: dict[str, Any]
) -> str:
    """Return a module with the function as `symbol`, and with what it calls."""
    signature = _TYPES[returns](*(_TYPES[each] for each in takes))
    with global_compiler_lock, _unfinished() as context:
        dispatcher = njit(**options)(function)
        dispatcher.compile(signature)
        result = dispatcher.overloads[signature.args]
        entry = _entry(context, result, returns, symbol)
        return _tidied(_joined(entry), symbol)


def _entry(context: Any, result: Any, returns: str, symbol: str) -> Any:
    """Return a library with a function as C calls it. Errors raised inside are lost."""
    described, convention = result.fndesc, context.call_conv
    library = context.codegen().create_library(symbol)
    library.add_linking_library(result.library)
    module = library.create_ir_module(symbol)
    given = described.restype, described.argtypes
    callee = ir.Function(module, convention.get_function_type(*given), described.llvm_func_name)
    kinds = [context.get_value_type(each) for each in described.argtypes]
    answer = context.get_value_type(described.restype) if returns else ir.VoidType()
    entry = ir.Function(module, ir.FunctionType(answer, kinds), symbol)
    builder = ir.IRBuilder(entry.append_basic_block())
    _, out = convention.call_function(builder, callee, *given, entry.args)
    if returns:
        builder.ret(out)
    else:
        builder.ret_void()
    library.add_ir_module(module)
    return library


def _joined(library: Any) -> Any:
    """Return one module of a library and of all that it links, each once."""
    module = library._final_module.clone()
    module.link_in(llvm.parse_assembly(str(_without_owners())))
    left, seen = list(library._linking_libraries), {library}
    while left:
        other = left.pop()
        if other not in seen:
            seen.add(other)
            module.link_in(other._get_module_for_linking(), preserve=True)
            left += other._linking_libraries
    return module


def _without_owners() -> Any:
    """Return a module in which Numba's counting of references does nothing.

    All memory here is the caller's. LLVM would have to prove this of every array.
    """
    module = ir.Module("kofn_owners")
    module.triple = llvm.get_process_triple()
    for name in ("NRT_incref", "NRT_decref"):
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()])
        function = ir.Function(module, kind, name)
        function.attributes.add("alwaysinline")
        ir.IRBuilder(function.append_basic_block()).ret_void()
    return module


def _tidied(module: Any, symbol: str) -> str:
    """Return the text of a module without uncalled functions and detours by memory."""
    hide(module, symbol)
    machine = llvm.Target.from_default_triple().create_target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(0))
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, builder)
    return str(module)
