"""Forms of PyTorch's tensors, and states of PyTorch that change what a call makes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from calls import BOOLEAN, FLOAT, INTEGER, Call
from zoo.form import (
    EVERY,
    Form,
    Values,
    always,
    any_argument,
    as_it_is,
    beside,
    first_row,
    is_matrix,
    may_be_a_number,
    not_in_parts,
    of_eight_bits,
    of_rows,
    one_number,
    plain_alone,
    zeros_and_ones,
)
from zoo.of_numpy import INTEGERS


class Own(torch.Tensor):
    """A subclass without rules of its own: answers of functions are of it, too."""


class Seen(torch.Tensor):
    """A subclass that looks at every function that it is given to."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return super().__torch_function__(function, types, args, kwargs or {})


def with_gaps(x: torch.Tensor) -> torch.Tensor:
    """Every third entry of a larger tensor, differentiable in x."""
    strange = torch.nan if x.is_floating_point() else 1
    wide = x.new_full([3 * size for size in x.shape], strange, requires_grad=False)
    steps = tuple(slice(1, None, 3) for _ in x.shape)
    wide = wide.clone()
    wide[steps] = x
    return wide[steps]


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


def spread(x: torch.Tensor) -> torch.Tensor:
    """With strides of 0, where the entries are the same."""
    same = x.numel() > 0 and torch.equal(x[:1].expand(x.shape), x)
    return x[:1].expand(x.shape) if same else x


def negated(x: torch.Tensor) -> torch.Tensor:
    """A view whose memory holds −x."""
    return torch._neg_view(-x)


def imaginary(x: torch.Tensor) -> torch.Tensor:
    """The imaginary part of a conjugate, which lies between real parts, with the other sign."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def unaligned(x: torch.Tensor) -> torch.Tensor:
    memory = bytearray(b"\0" + x.numpy().tobytes())
    return torch.frombuffer(memory, dtype=x.dtype, offset=1).reshape(x.shape)


def view_of_parameter(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(x.detach())[...]


def inferred(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


def nested(layout: torch.layout) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: torch.nested.nested_tensor(list(x), layout=layout)


def masked(x: torch.Tensor) -> torch.Tensor:
    return torch.masked.masked_tensor(x, torch.ones_like(x, dtype=torch.bool))


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without PyTorch's warnings that a kind of tensors is new."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def default_device() -> contextlib.AbstractContextManager[Any]:
    return torch.device("meta")


@contextlib.contextmanager
def set_default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


def default_dtype(dtype: torch.dtype) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def around() -> Iterator[None]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    return around


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def threads() -> Iterator[None]:
    torch.set_num_threads(3)
    try:
        yield
    finally:
        torch.set_num_threads(1)


@contextlib.contextmanager
def anomaly() -> Iterator[None]:
    with quietly(), torch.autograd.set_detect_anomaly(True):
        yield


def has_rows(call: Call, name: str) -> bool:
    return not_in_parts(call, name) and call.arguments[name].ndim > 0


DENSE = (
    Form("with gaps", "torch", with_gaps),
    Form("column by column", "torch", transposed, of=of_rows),
    Form("strides of 0", "torch", spread, values=first_row),
    Form("negative bit", "torch", negated, FLOAT),
    Form("imaginary part of a conjugate", "torch", imaginary, FLOAT),
    Form("unaligned", "torch", lambda x: unaligned(x.detach()), learned=False),
    Form("in shared memory", "torch", lambda x: x.clone().share_memory_(), learned=False),
    Form("parameter", "torch", lambda x: torch.nn.Parameter(x.detach()), FLOAT, learned=False),
    Form("view of a parameter", "torch", view_of_parameter, FLOAT, learned=False),
    Form("inference", "torch", inferred, learned=False, around=torch.no_grad),
    Form("subclass", "torch", lambda x: x.as_subclass(Own), refused=plain_alone),
    Form(
        "subclass that sees functions", "torch", lambda x: x.as_subclass(Seen), refused=plain_alone
    ),
    Form(
        *("array without dimensions", "torch", lambda x: x.flatten()[0]),
        of=may_be_a_number,
        values=one_number,
        refused=always,
        learned=False,
    ),
    *(
        Form(
            *(dtype, "torch", lambda x, dtype=dtype: x.to(getattr(torch, dtype)), INTEGER),
            refused=always,
        )
        for dtype in INTEGERS
    ),
)
"""Tensors that have the numbers in memory."""

STATES = (
    Form("default device meta", "torch", around=default_device),
    Form("default device set to meta", "torch", around=set_default_device),
    Form("default dtype bfloat16", "torch", around=default_dtype(torch.bfloat16)),
    Form("default dtype float16", "torch", around=default_dtype(torch.float16)),
    Form("default dtype float64", "torch", around=default_dtype(torch.float64), dtype="float32"),
    Form("deterministic algorithms", "torch", around=deterministic),
    Form("without gradients", "torch", around=torch.no_grad, learned=False),
    Form("inference mode", "torch", around=torch.inference_mode, learned=False),
    Form("anomalies detected", "torch", around=anomaly),
    Form("three threads", "torch", around=threads),
)
"""Ordinary tensors where PyTorch's state is another one."""


def other(
    name: str,
    make: Callable[[Any], Any],
    kinds: str = EVERY,
    of: Callable[[Call, str], bool] = any_argument,
    values: Values = as_it_is,
) -> Form:
    def bare(x: torch.Tensor) -> Any:
        with quietly():
            return make(x.detach())

    return Form(
        *(name, "torch", bare, kinds, of, values),
        refused=always,
        learned=False,
        around=quietly,
    )


OTHERS = (
    other("nested", nested(torch.strided), of=has_rows),
    other("jagged", nested(torch.jagged), of=of_rows),
    other("masked tensor", masked),
    other("sparse", lambda x: x.to_sparse()),
    other("sparse rows", lambda x: x.to_sparse_csr(), of=is_matrix),
    other("NumPy", lambda x: x.numpy(), of=beside),
    other("list", lambda x: x.tolist()),
    other("tuple of rows", tuple, of=not_in_parts),
    other("scalar of NumPy", lambda x: x.numpy().flat[0], of=may_be_a_number, values=one_number),
    other("complex", lambda x: x.to(torch.complex64), FLOAT),
    other("float8", lambda x: x.to(torch.float8_e4m3fn), FLOAT, values=of_eight_bits),
    other("booleans for numbers", lambda x: x > 0, FLOAT, values=zeros_and_ones),
    other("numbers for booleans", lambda x: x.long(), BOOLEAN),
)
"""What most functions refuse."""

FORMS = (*DENSE, *STATES, *OTHERS)
