"""The names of PyTorch that are not public, each with its reason and the way to do without it.

No other file of kofn names one of them. Without a name, answers are the same, but slower, unless it
says otherwise. tests/arrays/test_arrays_torch_private.py shows the ways without them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def _test(home: Any, name: str) -> Callable[..., Any]:
    """Return a test of a tensor, or one that is always true: array code then serves every tensor.

    Public tests exist for torch.compile alone (torch.compiler.is_compiling).
    """
    return getattr(home, name, lambda *_: True)


# Each call asks for them, so none is looked up there.
is_tracing = _test(torch._C, "_is_tracing")  # torch.jit.trace
_transforms_active = _test(torch._C, "_are_functorch_transforms_active")  # torch.func
_is_batched = _test(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor")  # older vmap
_dispatch_modes = _test(torch._C, "_len_torch_dispatch_stack")  # __torch_dispatch__
_is_zero = _test(Tensor, "_is_zerotensor")  # zeros of autograd, which have no memory
_tells_level = hasattr(forward_ad, "_current_level")


def is_transformed() -> bool:
    """Return whether a transform of torch.func or forward mode is on.

    Reading the level of forward mode makes the compiler trace again for dual numbers.
    """
    return _transforms_active() or not _tells_level or forward_ad._current_level >= 0


_is_mapped = getattr(getattr(torch._C, "_functorch", None), "is_batchedtensor", None)


def is_mapped(x: Tensor) -> bool:
    """Return whether torch.func.vmap maps over a tensor; without the name, errors are PyTorch's."""
    return _is_mapped is not None and is_transformed() and bool(_is_mapped(x))


_keeps_graph = _test(getattr(torch._C, "_autograd", None), "_get_current_graph_task_keep_graph")


def keeps_graph() -> bool:
    """Return whether the way back under way may be gone again, with what was kept for it."""
    return bool(_keeps_graph())


def makes_graph() -> bool:
    """Return whether make_fx records operations; without the name, it may record a seed."""
    fx = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return getattr(fx, "get_proxy_mode", lambda: None)() is not None


def is_left_alone(x: Tensor) -> bool:
    """Return whether nothing traces or transforms operations on a tensor, but a compiler."""
    return (
        not is_tracing()
        and not _is_zero(x)
        and not _transforms_active()
        and not _is_batched(x)
        and not _dispatch_modes()
        and _tells_level
        and forward_ad._current_level < 0
    )


backward_pass: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)
"""A number for the running backward pass, −1 outside of one: by it, activation checkpointing is
known to run a module again. Without it both runs count."""

_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)
_next_node: Callable[[], int] = getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)
numbers_nodes = hasattr(torch._C, "_current_autograd_node")
"""Whether `node_number` can tell."""


def node_number() -> int:
    """Return the number of the node of a graph that a backward pass is at, or else of the next one.

    By it, calls that a checkpoint runs again are told apart; without it all have the number 0.
    """
    node = _node()
    return _next_node() if node is None else node._sequence_nr()


def recorded_by(
    operator: Any, pullback: Callable[..., Any], keep: Callable[..., Any] | None
) -> Any:
    """Return (autograd's function of an operator, a context below it, the key of subclasses).

    torch.library.register_autograd sets the same function, which takes as long as a short row even
    where nothing is recorded. None where the names are gone: then that one serves.
    """
    try:
        from torch._library.autograd import Info, make_autograd_impl

        below, python = torch._C._AutoDispatchBelowAutograd, torch._C.DispatchKey.Python
        return make_autograd_impl(operator, Info(pullback, keep)), below, python
    except (ImportError, AttributeError):
        return None


def mark_constant(function: Callable[..., Any]) -> None:
    """Mark a function as torch.compiler.assume_constant_result does, which imports the compiler.

    kofn calls that one, too, as soon as the compiler is imported.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]


def tree_leaves(output: Any) -> list[Any]:
    """Return the tensors, and all else, in nested lists, tuples and dictionaries, as fully_shard
    does; without the name, the tensors of a list or a tuple.
    """
    try:
        from torch.utils._pytree import tree_leaves as leaves
    except ImportError:
        return list(output) if isinstance(output, (list, tuple)) else [output]
    return leaves(output)


COMPILER = "torch._dynamo"
"""The module of the compiler; torch.compiler imports it, and has no name for it."""


def guards_being_made() -> Any:
    """Return the checks that torch.compile collects for the function it traces, or None."""
    try:
        from torch._guards import TracingContext

        return TracingContext.try_get().guards_context.dynamo_guards  # type: ignore[union-attr]
    except (ImportError, AttributeError):
        return None


def after_backward(call: Callable[[], None]) -> None:
    """Have a function called at the end of the running backward pass, as fully_shard does.

    No public hook comes after all gradients of a module. Without the name, a step of pruning with
    fully_shard raises AttributeError.
    """
    torch.autograd.Variable._execution_engine.queue_callback(call)


def sharded_parameters(model: nn.Module) -> Iterator[Any]:
    """Return what fully_shard keeps of the parameters of a model: it looks for extensions once.

    Raises:
        RuntimeError: fully_shard does not show it; masks would be without effect.
    """
    for module in model.modules():
        if "FSDPModule" not in {kind.__name__ for kind in type(module).__mro__}:
            continue
        state: Any = getattr(module, "_get_fsdp_state", lambda: None)()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None and not hasattr(state, "_fsdp_param_group"):
            raise RuntimeError(
                f"nn.prune does not know fully_shard of PyTorch {torch.__version__}: finalize() "
                "before fully_shard"
            )
        for group in [state._fsdp_param_group] if groups is None else groups:
            yield from getattr(group, "fsdp_params", ())
