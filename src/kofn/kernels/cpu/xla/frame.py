"""What XLA hands to a function that it calls: the call frame of its typed interface, version 0.3.

A frame is read as integers of 8 bytes; jaxlib's xla/ffi/api/c_api.h has the structs.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from kofn.kernels.cpu.runtime.intrinsics import pointer
from kofn.kernels.cpu.runtime.private import cgutils
from kofn.kernels.cpu.runtime.shares import plain

VERSION = (0, 3)

# Words of XLA_FFI_CallFrame, of which these are the ones read here.
EXTENSION, API, CONTEXT, ARGUMENT_COUNT, ARGUMENTS = 1, 2, 3, 7, 9
RESULT_COUNT, RESULTS, ATTRIBUTES = 12, 14, 20
FRAME = 22
_METADATA = 1

# Words of XLA_FFI_Api: functions.
_ERROR_CREATE, _ERROR_DESTROY, _SCHEDULE, _NUM_THREADS = 6, 8, 17, 18
_FUNCTIONS = 19
_INTERNAL = 13  # XLA_FFI_Error_Code_INTERNAL

# Words of XLA_FFI_Buffer, of XLA_FFI_Array and of XLA_FFI_Scalar.
_DATA, _RANK, _DIMS = 3, 4, 5
_ARRAY_DATA, _SCALAR_VALUE = 2, 1


@intrinsic
def foreign(typingctx, address, arguments):
    """Call the C function at `address` with a tuple of integers; return its integer."""

    def codegen(context, builder, signature, values):
        count = len(signature.args[1])
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)] * count).as_pointer()
        passed = [builder.extract_value(values[1], i) for i in range(count)]
        return builder.call(builder.inttoptr(values[0], kind), passed)

    return types.int64(types.int64, arguments), codegen


@intrinsic
def scratch(typingctx):
    """The address of 8 integers that live as long as the function that asks."""

    def codegen(context, builder, signature, arguments):
        place = cgutils.alloca_once(builder, ir.ArrayType(ir.IntType(64), 8))
        return builder.ptrtoint(place, ir.IntType(64))

    return types.int64(), codegen


@plain
def words_at(address, count):
    return carray(pointer(address), count, np.int64)


@plain
def tell_version(extension):
    """Answer XLA's question which version of the interface this is, if it asks that."""
    words = words_at(extension, 4)
    if words[1] & 0xFFFFFFFF == _METADATA:
        metadata = words_at(words[3], 5)
        metadata[3], metadata[4] = VERSION[0] | VERSION[1] << 32, 0


@plain
def nth(pointers, i):
    """The address of a buffer among the arguments, or among the results."""
    return words_at(words_at(pointers, i + 1)[i], 6)[_DATA]


@plain
def rows_and_entries(pointers, i):
    """(how many rows, of how many entries) a buffer has."""
    buffer = words_at(words_at(pointers, i + 1)[i], 6)
    rank = buffer[_RANK]
    dims = words_at(buffer[_DIMS], rank)
    count = 1
    for axis in range(rank - 1):
        count *= dims[axis]
    return count, dims[rank - 1]


@plain
def integers(frame, i, count):
    """The attribute i, an array of integers."""
    attribute = words_at(words_at(words_at(frame, FRAME)[ATTRIBUTES], i + 1)[i], 3)
    return words_at(attribute[_ARRAY_DATA], count)


@plain
def number(frame, i):
    """The attribute i, a float."""
    attribute = words_at(words_at(words_at(frame, FRAME)[ATTRIBUTES], i + 1)[i], 3)
    return carray(pointer(attribute[_SCALAR_VALUE]), 1, np.float64)[0]


@plain
def _begin(arguments, words):
    """Say how long a struct of arguments is, and that it has no extension."""
    struct = words_at(arguments, words)
    struct[0], struct[1] = 8 * words, 0
    return struct


@plain
def _function(frame, which):
    return words_at(words_at(frame, FRAME)[API], _FUNCTIONS)[which]


@plain
def error(frame, message):
    """An error for XLA to raise, with the text at `message`."""
    at = scratch()
    struct = _begin(at, 4)
    struct[2], struct[3] = message, _INTERNAL
    return foreign(_function(frame, _ERROR_CREATE), (at,))


@plain
def _succeeded(frame, problem):
    """Whether a call of XLA's did; lets go of its error."""
    if problem == 0:
        return True
    at = scratch()
    _begin(at, 3)[2] = problem
    foreign(_function(frame, _ERROR_DESTROY), (at,))
    return False


@plain
def threads(frame):
    """How many threads XLA's pool has; 1 if there is none."""
    at, count = scratch(), scratch()
    words_at(count, 1)[0] = 1
    struct = _begin(at, 4)
    struct[2], struct[3] = words_at(frame, FRAME)[CONTEXT], count
    known = _succeeded(frame, foreign(_function(frame, _NUM_THREADS), (at,)))
    return max(1, words_at(count, 1)[0]) if known else 1


@plain
def schedule(frame, task, data):
    """Have a thread of XLA's pool call `task` with `data`, some time; whether one will."""
    at = scratch()
    struct = _begin(at, 5)
    struct[2], struct[3], struct[4] = words_at(frame, FRAME)[CONTEXT], task, data
    return _succeeded(frame, foreign(_function(frame, _SCHEDULE), (at,)))
