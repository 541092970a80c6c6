"""Tests of how PyTorch treats a tensor: plain, traced, transformed or recorded."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from kofn.arrays.torch.marked import MARKED
from kofn.arrays.torch.private import (
    COMPILER,
    is_left_alone,
    is_tracing,
    is_transformed,
    keeps_graph,
    makes_graph,
    mark_constant,
)
from kofn.arrays.when_imported import import_after

if TYPE_CHECKING:
    import numpy as np

Answer = TypeVar("Answer")


def placed_like(x: Tensor, values: Tensor) -> Tensor:
    """Return `values`, equal in every process, as a replicated DTensor if `x` is a DTensor."""
    mesh = None if type(x) in _ORDINARY else getattr(x, "device_mesh", None)
    if mesh is None:
        return values
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(values, mesh, [Replicate()] * mesh.ndim, run_check=False)


def constant(like: Tensor, values: np.ndarray) -> Tensor:
    """Return `values` with the dtype and device of `like`, in every process that `like` is in."""
    where: Any = dict(dtype=like.dtype, device=like.device)
    if values.size == 1:  # a device would be waited for until it has copied memory of the host
        return placed_like(like, torch.full(values.shape, values.item(), **where))
    return placed_like(like, torch.as_tensor(values, **where))


SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def signed(x: Tensor) -> Tensor:
    """Return the bits of unsigned integers as signed ones, for which PyTorch has all operations."""
    return x.view(SIGNED[x.dtype.itemsize])


def numbers(like: Tensor, count: int) -> Tensor:
    """Return 0, 1, … count − 1 in the dtype and on the device of `like`."""
    return placed_like(like, torch.arange(count, dtype=like.dtype, device=like.device))


def drawn(
    normal: bool, rng: torch.Generator | None, shape: tuple[int, ...], like: Tensor
) -> Tensor:
    """Draw normal or uniform noise; torch.compile traces no generator but the global one."""
    draw = torch.randn if normal else torch.rand
    if rng is None:
        return draw(shape, dtype=like.dtype, device=like.device)
    options = dict(dtype=like.dtype, device=like.device, generator=rng)
    return untraced(partial(draw, **options), shape)


def seeded(seed: int, like: Tensor) -> torch.Generator | None:
    """Return a new generator on the device of `like`; none for meta tensors, which draw nothing."""
    return None if like.is_meta else untraced(_seeded, seed, like.device)


def _seeded(seed: int, device: torch.device) -> torch.Generator:
    recorded = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if recorded or torch.compiler.is_exporting() or makes_graph():
        raise TypeError(
            "rng must be None while a program is recorded, by torch.export or torch.jit.trace, "
            f"whose runs would go on in one sequence of random numbers; got {seed}"
        )
    return torch.Generator(device).manual_seed(seed)


def from_memory(values: np.ndarray) -> Tensor:
    """Return a CPU tensor that shares the memory of a NumPy array."""
    return torch.from_numpy(values)


def is_plain(x: Tensor) -> bool:
    """Return whether `x` is plain CPU or GPU memory that nothing traces or transforms."""
    return is_eager(x) and (x.is_cpu or x.is_cuda)


_ORDINARY = (Tensor, torch.nn.Parameter)
_is_compiling = torch.compiler.is_compiling


def is_eager(x: Tensor) -> bool:
    """Return whether `x` is a plain tensor on any device that nothing traces or transforms."""
    # Compilers trace no further than the first of these.
    return (
        not _is_compiling()
        and type(x) in _ORDINARY
        and x.layout is torch.strided
        and is_left_alone(x)
    )


_NUMBERS: dict[Any, Any] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


def cell(number: Tensor) -> Any:
    """Return the memory of a new tensor of one number on a CPU, to read and to write its `value`.

    Operations, whose code has left the cache after a pass over many rows, take ten times as long.
    """
    return _NUMBERS[number.dtype].from_address(number.data_ptr())


def is_last(cotangent: Tensor) -> bool:
    """Return whether a way back may write over what was kept for it: none comes after this one."""
    return is_eager(cotangent) and not keeps_graph()


def greatest(x: Tensor) -> int | None:
    """Return the greatest of integers, −1 of none, or None where they cannot be read.

    A mode that watches the operations of eager code, such as a counter of them, does not hide them.
    """
    if _is_compiling() or is_tracing() or x.is_meta:
        return None
    try:
        return int(x.max()) if x.numel() else -1
    except RuntimeError:
        if is_eager(x):
            raise
        return None  # vmap maps over them, or fake tensors have none


def is_compiled() -> bool:
    """Return whether torch.compile traces the caller, outside of transforms and of export."""
    return _is_compiling() and not torch.compiler.is_exporting() and not is_transformed()


def untraced(function: Callable[..., Answer], *arguments: object) -> Answer:
    """Call function(*arguments) outside of torch.compile, which breaks the graph here."""
    if not _is_compiling():
        return function(*arguments)
    from kofn.arrays.torch.untraced import call

    return call(function, *arguments)


def constant_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function of a module as torch.compiler.assume_constant_result does.

    That one imports the compiler, which takes over a second. So it is called as soon as the
    compiler is imported, and before that the mark is one that it sets.
    """
    # Its import brings torch.distributed.tensor, and that brings this here: it may be half done.
    if hasattr(sys.modules.get(COMPILER), "assume_constant_result"):
        return torch.compiler.assume_constant_result(function)  # type: ignore[no-untyped-call]
    mark_constant(function)
    if not MARKED:
        import_after(COMPILER, f"{__package__}.constants")
    MARKED.append(function)
    return function


@constant_result
def in_onnx_export() -> bool:
    """Return torch.onnx.is_in_onnx_export(), which the compiler, that exports too, holds for no."""
    return torch.onnx.is_in_onnx_export()


def is_captured(x: Tensor) -> bool:
    """Return whether operations on a tensor go into a CUDA graph, and nothing of it can be read."""
    cuda = torch.cuda
    begun = x.is_cuda and cuda.is_initialized()  # type: ignore[no-untyped-call]
    return begun and cuda.is_current_stream_capturing()


def is_autocast(x: Tensor) -> bool:
    """Return whether torch.autocast is on for the device of `x`."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def is_recorded(x: Tensor) -> bool:
    """Return whether autograd records operations on `x`."""
    return torch.is_grad_enabled() and x.requires_grad


def recording(function: Callable[..., Answer], *arguments: object) -> Answer:
    """Call function(*arguments) where autograd can record, also inside of an operator.

    PyTorch turns autograd off in the thread that runs one, and grad mode does not bring it back.
    Another thread has it, but has a device and streams of its own until it is given these.
    """
    device, streams, cuda = 0, [], torch.cuda
    if cuda.is_initialized():  # type: ignore[no-untyped-call]
        device = cuda.current_device()
        streams = [cuda.current_stream(each) for each in range(cuda.device_count())]

    def there() -> Answer:
        for stream in streams:
            cuda.set_stream(stream)
        with cuda.device(device) if streams else contextlib.nullcontext():
            return function(*arguments)

    with ThreadPoolExecutor(1) as other:
        return other.submit(there).result()


def batched(
    arguments: Sequence[Tensor | None], dims: Sequence[int | None], size: int
) -> list[Tensor | None]:
    """Return arguments of vmap with the batch dimension first; repeat those that have none."""

    def first(value: Tensor | None, dim: int | None) -> Tensor | None:
        if value is None:
            return None
        return value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)

    return [first(value, dim) for value, dim in zip(arguments, dims, strict=False)]


def values_and_slopes(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    if not is_eager(x):
        # Compilers and transforms of the caller support vjp, but not autograd.grad.
        values, pull = torch.func.vjp(function, x.detach())[:2]
        (slopes,) = pull(torch.ones_like(values))
        return values, slopes.detach()
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        values = function(leaf)
        if not values.requires_grad:
            return values, torch.zeros_like(leaf)
        (slopes,) = torch.autograd.grad(
            values.sum(), leaf, retain_graph=True, allow_unused=True, materialize_grads=True
        )
    return values, slopes
