"""The GPU's kernels on the CPU, by Triton's interpreter.

test_kernels_gpu.py runs these files in a process whose environment says so before Triton is
imported.
"""

from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from kofn import kernels
from kofn.adapters import labelled
from kofn.kernels import cpu
from kofn.kernels.gpu.rows import launch as gpu
from kofn.losses import at_once


def pytest_collection_modifyitems(items):
    """Leave two of three cases of a test to the full run: the interpreter takes long for each."""
    tests = {}
    for item in (one for one in items if one.path.parent == Path(__file__).parent):
        # NumPy warns where the interpreter has it divide by 0 and overflow, as the plan is.
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
        if hasattr(item, "callspec") and item.get_closest_marker("full") is None:
            tests.setdefault(item.originalname, []).append(item)
    for name, cases in tests.items():
        every = min(3, len(cases))
        for place, item in enumerate(cases, crc32(name.encode())):
            if place % every:
                item.add_marker(pytest.mark.full)


@pytest.fixture(autouse=True, scope="session")
def prepared_once_a_launch():
    """Triton's interpreter prepares its language anew at every call of a function inside a kernel,
    for half of the time that these tests would take.
    """
    prepare, launch, done = interpreter._patch_lang, interpreter.GridExecutor.__call__, {}

    def once(function):
        key = "core" in function.__globals__
        done[key] = done.get(key) or prepare(function)
        return done[key]

    def launch_anew(self, *arguments, **options):
        done.clear()
        return launch(self, *arguments, **options)

    def called_at_once(to, name, member, builder, scope):
        """Without Triton's own look at whether a kernel is what calls its language."""
        inner = getattr(member, "__wrapped__", member)

        def call(*arguments, **options):
            options["_semantic"] = interpreter.interpreter_semantic
            return inner(*arguments, **options)

        scope.set_attr(to, name, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", once)
        patch.setattr(interpreter, "_patch_attr", called_at_once)
        patch.setattr(interpreter.GridExecutor, "__call__", launch_anew)
        yield


@pytest.fixture(autouse=True, scope="session")
def shapes_made_once():
    """Triton checks and copies the shape of each number that an interpreted kernel computes: for
    half of the time again. Blocks of one type and shape share what was found of the first.
    """
    blocks, init, broadcast = {}, tl.block_type.__init__, TritonSemantic.broadcast_impl_value
    types, find = {}, interpreter._get_np_dtype
    numbers, pairs, alike = {}, {}, TritonSemantic.binary_op_type_checking_impl
    # Types that an operation on two of them keeps, each with those of the numbers that take it on.
    KEPT = {id(tl.float32): (int, float), id(tl.float64): (int, float)}
    KEPT |= {id(tl.int32): (int,), id(tl.int64): (int,), id(tl.int1): ()}
    elements, element_of = {}, tl.block_type.with_element_ty
    wide, sizes, is_within = {}, {}, interpreter._validate_np_data_size

    def block(self, element_ty, shape):
        key = id(element_ty), *(getattr(size, "value", size) for size in shape)
        if key not in blocks:
            init(self, element_ty, shape)
            self.of_tensors = tl.tuple([tl.constexpr(size) for size in self.shape])
            self.of_tensors.numel = tl.constexpr(self.numel)
            blocks[key] = vars(self)  # which keeps the element type, and so its id
        vars(self).update(blocks[key])

    def tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape = type.of_tensors if type.is_block() else NO_SHAPE
        self.numel = self.shape.numel

    def broadcast_unless_alike(self, lhs, rhs):
        if lhs.shape is rhs.shape:
            return lhs, rhs
        key = id(lhs.dtype), id(lhs.shape), id(rhs.dtype), id(rhs.shape)
        if key not in wide:
            both = broadcast(self, lhs, rhs)
            wide[key] = [each.type for each in both], lhs.dtype, rhs.dtype
            return both
        return tuple(map(as_wide, (lhs, rhs), wide[key][0]))

    def as_wide(given, type):
        if given.shape is type.of_tensors:
            return given
        if given.shape is NO_SHAPE:
            return tl.tensor(interpreter.interpreter_builder.create_splat(type, given.handle), type)
        data = np.broadcast_to(given.handle.data, type.shape.values)
        return tl.tensor(interpreter.TensorHandle(data, given.handle.dtype.scalar), type)

    def with_element_ty(self, scalar_ty):
        key = id(scalar_ty), id(self.of_tensors)
        if key not in elements:
            elements[key] = element_of(self, scalar_ty)
        return elements[key]

    def is_within_once(data, dtype):
        key = data.itemsize, id(dtype)
        if key not in sizes:
            sizes[key] = is_within(data, dtype), dtype  # which keeps it, and so its id
        return sizes[key][0]

    def alike_unless_they_are(self, lhs, rhs, *options, **named):
        one, other = (isinstance(each, tl.tensor) for each in (lhs, rhs))
        if one and other and lhs.dtype is rhs.dtype and id(lhs.dtype) in KEPT:
            if lhs.shape is rhs.shape:
                return lhs, rhs
            key = id(lhs.dtype), id(lhs.shape), id(rhs.shape)  # shapes that `blocks` keeps
            if key not in pairs:
                pairs[key] = alike(self, lhs, rhs, *options, **named)[0].type
            return tuple(tl.tensor(each.handle, pairs[key]) for each in (lhs, rhs))
        if one and type(rhs) in KEPT.get(id(lhs.dtype), ()):
            return lhs, block_of(self, rhs, lhs)
        if other and type(lhs) in KEPT.get(id(rhs.dtype), ()):
            return block_of(self, lhs, rhs), rhs
        return alike(self, lhs, rhs, *options, **named)

    def block_of(self, number, like):
        key = str(number), id(like.dtype), id(like.shape)  # −0.0 is another number than 0.0
        if key not in numbers:
            numbers[key] = alike(self, like, number)[1]
        return numbers[key]

    def type_of(given):
        if given.scalar.name not in types:
            types[given.scalar.name] = find(given)
        return types[given.scalar.name]

    NO_SHAPE = tl.tuple([])
    NO_SHAPE.numel = tl.constexpr(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tl.block_type, "__init__", block)
        patch.setattr(tl.tensor, "__init__", tensor)
        patch.setattr(TritonSemantic, "broadcast_impl_value", broadcast_unless_alike)
        patch.setattr(TritonSemantic, "binary_op_type_checking_impl", alike_unless_they_are)
        patch.setattr(interpreter, "_get_np_dtype", type_of)
        patch.setattr(tl.block_type, "with_element_ty", with_element_ty)
        patch.setattr(interpreter, "_validate_np_data_size", is_within_once)
        yield


@pytest.fixture(autouse=True, scope="session")
def the_usual_first():
    """Types are most often those that are wanted, and numbers no constants of Triton's."""
    unwrap, equal, cast = tl.core._unwrap_if_constexpr, tl.dtype.__eq__, TritonSemantic.cast

    def unwrapped(given):
        return given if type(given) is tl.tensor else unwrap(given)

    def is_type(self, other):
        return self is other or equal(self, other)

    def cast_unless_it_is(self, given, to, *more, **named):
        alike = given.type.scalar is to.scalar
        return given if alike else cast(self, given, to, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tl.core, "_unwrap_if_constexpr", unwrapped)
        patch.setattr(tl.dtype, "__eq__", is_type)
        patch.setattr(TritonSemantic, "cast", cast_unless_it_is)
        yield


@pytest.fixture(autouse=True, scope="session")
def overflow_seen_by_numpy():
    """Triton asks of each sum of integers whether it has room, in many steps of its interpreter."""
    OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}

    def has_room(self, lhs, rhs, operation):
        kind = lhs.type.scalar
        if kind.int_bitwidth < 64:
            both = (each.handle.data.astype(np.int64) for each in (lhs, rhs))
            exact = OPERATIONS[operation.__name__](*both)
            assert exact.min() >= kind.get_int_min_value(), f"{kind}: {operation.__name__}"
            assert exact.max() <= kind.get_int_max_value(), f"{kind}: {operation.__name__}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TritonSemantic, "binary_op_sanitize_overflow_impl", has_room)
        yield


@pytest.fixture(autouse=True)
def rounded(monkeypatch):
    """To bfloat16 as a GPU converts: Triton's interpreter cuts the digits off."""
    convert = interpreter._convert_float

    def rounding(values, before, after, mode):
        if after != tl.bfloat16:
            return convert(values, before, after, mode)
        return torch.tensor(values).bfloat16().view(torch.int16).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", rounding)


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    """Tensors are served as a GPU's are; what a kernel leaves unwritten holds NaN."""
    (backend,) = [one for one in kernels.BACKENDS if one.rows == gpu.__name__]
    monkeypatch.setattr(kernels, "BACKENDS", (backend._replace(serves=cpu.serves),))

    def empty(like, shape, dtype=None):
        return like.new_full(shape, -1 if dtype == torch.int64 else np.nan, dtype=dtype)

    monkeypatch.setattr(gpu, "empty", empty)
    monkeypatch.setattr(at_once, "is_elsewhere", lambda scores: True)
    monkeypatch.setattr(labelled, "_call_of", lambda *_: None)  # for a CPU's kernels alone
