"""topk: values and indices of the k largest, exactly, of every type and in every framework."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kofn
from support import Framework, each_compiler, with_gradients

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
NOT_OF_TORCH = ("uint32", "uint64")  # it neither sorts nor gathers them
SPECIAL = (-np.inf, np.inf, np.nan, -0.0, 0.0)


def by_sorting(x, k, largest=True, mask=None):
    """Indices by a sort of Python's: (in play, NaN or the number, index) of each entry."""
    x = np.asarray(x)
    rows = x.reshape(-1, x.shape[-1])
    masks = np.ones_like(rows, bool) if mask is None else np.asarray(mask).reshape(rows.shape)

    def place(value, playing, index):
        if not playing:
            return 2, 0, index
        value = int(value) if x.dtype.kind in "iu" else float(value)
        if value != value:
            return (0 if largest else 1), 0, index
        return (1 if largest else 0), (-value if largest else value), index

    found = [
        sorted(range(x.shape[-1]), key=lambda i: place(row[i], playing[i], i))[:k]
        for row, playing in zip(rows, masks, strict=True)
    ]
    return np.array(found, np.int64).reshape(*x.shape[:-1], k)


def masked_values(x, indices, mask, largest):
    values = np.take_along_axis(x, indices, -1)
    if mask is None:
        return values
    info = np.iinfo(x.dtype) if x.dtype.kind in "iu" else None
    ends = (-np.inf, np.inf) if info is None else (info.min, info.max)
    playing = np.take_along_axis(mask, indices, -1)
    return np.where(playing, values, np.array(ends[not largest], x.dtype))


def of(name, x):
    """An array of a framework, of the same numbers: bfloat16 comes as float32 that it can hold."""
    return Framework(name).array(x, str(x.dtype)) if name != "numpy" else x


def check(x, k, largest, mask, name):
    found = kofn.topk(
        of(name, x), k, largest=largest, mask=None if mask is None else of(name, mask)
    )
    wanted = by_sorting(x, k, largest, mask)
    assert np.array_equal(np.asarray(found.indices), wanted)
    values = np.asarray(found.values)
    assert values.dtype == x.dtype
    expected = masked_values(x, wanted, mask, largest)
    assert np.array_equal(values, expected, equal_nan=x.dtype.kind == "f")
    loose = kofn.topk(of(name, x), k, largest=largest, sorted=False)
    assert np.array_equal(np.sort(np.asarray(loose.indices)), np.sort(by_sorting(x, k, largest)))


rows_of_numbers = st.builds(
    lambda seed, n, spread, ties, special: (seed, n, spread, ties, special),
    st.integers(0, 2**32 - 1),
    st.integers(1, 200),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e4, 1e30]),
    st.booleans(),
    st.sampled_from([0.0, 0.2, 0.9]),
)


def numbers(description, dtype):
    """Two rows of that many numbers: with ties, with special ones, as wide as a dtype allows."""
    seed, n, spread, ties, special = description
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, n))
    x = np.round(x) if ties else x * 10.0 ** rng.uniform(-2, 2, x.shape)
    odd = rng.random(x.shape) < special
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        x = np.clip(np.abs(x) * 40 if dtype[0] == "u" else x * 40, info.min, info.max).astype(dtype)
        ends = np.array([info.min, info.max], dtype)
        return np.where(odd, rng.choice(ends, x.shape), x)
    with np.errstate(over="ignore"):
        x = (x * spread).astype(dtype)
    return np.where(odd, rng.choice(SPECIAL, x.shape), x).astype(dtype)


@pytest.mark.parametrize("dtype", [d for d in (*FLOATS, *INTEGERS) if d != "bfloat16"])
@pytest.mark.parametrize("kernels", ["on", "reference"])
@settings(max_examples=15, deadline=None)
@given(
    description=rows_of_numbers, share=st.floats(0, 1), largest=st.booleans(), masked=st.booleans()
)
def test_the_answer_is_that_of_a_sort(kernels, dtype, description, share, largest, masked):
    x = numbers(description, dtype)
    k = round(share * x.shape[-1])
    mask = np.random.default_rng(1).random(x.shape) < 0.6 if masked else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KOFN_KERNELS", kernels)
        check(x, k, largest, mask, "numpy")
        if dtype not in NOT_OF_TORCH:
            check(x, k, largest, mask, "torch")


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int32", "uint32"])
@pytest.mark.parametrize("n", [1, 40])
@pytest.mark.parametrize("largest", [True, False])
def test_on_jax_the_answer_is_that_of_a_sort(dtype, n, largest):
    for ties, special in ((False, 0.2), (True, 0.9)):
        x = numbers((n, n, 1.0, ties, special), dtype)
        check(x, (n + 1) // 2, largest, None, "jax")
        check(x, n, largest, np.random.default_rng(1).random(x.shape) < 0.6, "jax")


def test_lengths_at_which_the_kernel_goes_another_way():
    rng = np.random.default_rng(0)
    for n in (15, 16, 17, 63, 64, 65, 128, 129, 1000, 4097):
        for k in {1, n // 8, n // 8 + 1, n - 1, n}:
            for x in (
                rng.standard_normal((1, n)),
                np.zeros((1, n)),
                np.arange(n)[None, ::-1] * 1.0,
            ):
                assert np.array_equal(kofn.topk(x, k).indices, by_sorting(x, k)), (n, k)


def test_numbers_that_crowd_in_some_parts_of_a_row():
    """Of 32 parts, whose maxima bound the k-th largest, one has all large numbers."""
    x = np.random.default_rng(0).standard_normal((3, 4096)).astype(np.float32)
    x[:, 5::32] += 10
    assert np.array_equal(kofn.topk(x, 8).indices, by_sorting(x, 8))


def test_thousands_of_numbers_with_one_prefix():
    """A search by digits has to hold 4,096 numbers that agree in all but their last ones."""
    rng = np.random.default_rng(0)
    n, k = 1 << 20, 2048
    x = rng.standard_normal(n).astype(np.float32)
    places = rng.permutation(n)[:4096]
    bits = np.float32(8.0).view(np.int32) + np.arange(4096, dtype=np.int32)
    x[places] = rng.permutation(bits).view(np.float32)
    wanted = np.lexsort((np.arange(n), -x.astype(np.float64)))[:k]
    for found in (kofn.topk(x, k), kofn.topk(torch.tensor(x), k)):
        assert np.array_equal(np.asarray(found.indices), wanted)
    x[places] = 8.0
    assert np.array_equal(kofn.topk(x, k).indices, np.sort(places)[:k])


def test_it_is_torch_topk_where_nothing_is_equal():
    x = torch.randn(4, 5, 33, generator=torch.Generator().manual_seed(0))
    for dim in (0, 1, -1):
        for largest in (True, False):
            found = kofn.topk(x, 3, dim=dim, largest=largest)
            wanted = x.topk(3, dim=dim, largest=largest)
            assert torch.equal(found.values, wanted.values)
            assert torch.equal(found.indices, wanted.indices)
    for name in ("bfloat16", "float16"):
        half = x.to(getattr(torch, name))
        assert torch.equal(kofn.topk(half, 3).values, half.topk(3).values)


@with_gradients
def test_the_gradient_is_that_of_the_entries_found(name):
    framework = Framework(name)
    x = framework.array([[2.0, -1.0, 0.5, 1.0], [0.0, 3.0, 3.0, -2.0]])
    v = framework.array([[1.0, 2.0], [3.0, 4.0]])
    gradient = framework.vjp(lambda x: kofn.topk(x, 2).values, (x,), v)[0]
    assert np.array_equal(gradient, [[1, 0, 0, 2], [0, 3, 4, 0]])
    mask = framework.array([[True, False, False, False], [True] * 4], "bool")
    gradient = framework.vjp(lambda x: kofn.topk(x, 2, mask=mask).values, (x,), v)[0]
    assert np.array_equal(gradient, [[1, 0, 0, 0], [0, 3, 4, 0]])


def test_derivatives_and_transforms_of_torch():
    x = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def values(x):
        return kofn.topk(x, 3).values

    assert torch.autograd.gradcheck(values, x.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x: values(x) ** 2, x, fast_mode=True)
    x = x.detach()
    assert torch.equal(torch.func.vmap(values)(x), values(x))
    assert torch.equal(torch.func.vmap(values, in_dims=1)(x.T.contiguous()), values(x))
    jacobian = torch.func.jacrev(values)(x[0])
    assert torch.equal(jacobian, torch.eye(7, dtype=x.dtype)[kofn.topk(x[0], 3).indices])
    assert torch.equal(torch.func.jacfwd(values)(x[0]), jacobian)


def test_unsigned_integers_of_torch():
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        x = torch.tensor([3, 1, 2]).to(dtype)
        found = kofn.topk(x, 2)
        assert found.values.dtype == dtype
        assert found.values.tolist() == [3, 2]
        assert found.indices.tolist() == [0, 2]


def test_transforms_of_jax():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 7)))

    def both(x):
        return kofn.topk(x, 3)

    wanted = both(x)
    for found in (jax.jit(both)(x), jax.vmap(both)(x)):
        assert type(found) is kofn.maps.ordered.largest.TopK
        assert np.array_equal(found.values, wanted.values)
        assert np.array_equal(found.indices, wanted.indices)
    jacobian = jax.jacrev(lambda x: both(x).values)(x[0])
    assert np.array_equal(jacobian, np.eye(7)[np.asarray(wanted.indices[0])])
    assert jax.jit(kofn.topk, static_argnames="k")(x, k=2).values.shape == (3, 2)


@each_compiler
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_and_exported(dynamic, backend):
    x = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    mask = x > -0.5

    def both(x, mask):
        values, indices = kofn.topk(x, 3)
        return values, indices, kofn.topk(x, 2, largest=False, mask=mask).indices

    wanted = both(x, mask)
    compiled = torch.compile(both, fullgraph=True, dynamic=dynamic, backend=backend)
    for found in (compiled(x, mask), compiled(x[:4], mask[:4])):
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other[: len(one)])

    class Module(torch.nn.Module):
        def forward(self, x, mask):
            return both(x, mask)

    program = torch.export.export(Module(), (x, mask))
    for one, other in zip(program.module()(x, mask), wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("k", "error", "message"),
    [
        (5, ValueError, r"k must be an integer in \[0, n\] \(here n = 4"),
        (-1, ValueError, r"k must be an integer in \[0, n\]"),
        (1.5, TypeError, "k must be an integer .*got 1.5"),
        (True, TypeError, "k must be an integer .*got True"),
        (np.array([1, 2]), TypeError, "k must be an integer"),
        (None, TypeError, "k must be an integer .*got None"),
    ],
)
def test_k_is_an_integer_that_there_is(framework, k, error, message):
    with pytest.raises(error, match=message):
        kofn.topk(framework.array([[1.0, 2.0, 3.0, 4.0]]), k)


def test_refusals_name_the_argument():
    x = np.array([1.0, 2.0])
    with pytest.raises(TypeError, match=r"x must have dtype .* or an integer type of .*; got bool"):
        kofn.topk(np.array([True, False]), 1)
    with pytest.raises(TypeError, match=r"x must be a torch\.Tensor"):
        kofn.topk([1.0, 2.0], 1)
    with pytest.raises(TypeError, match="largest must be True or False"):
        kofn.topk(x, 1, largest="no")
    with pytest.raises(TypeError, match="sorted must be True or False"):
        kofn.topk(x, 1, sorted=1)
    with pytest.raises(TypeError, match="mask must be boolean"):
        kofn.topk(x, 1, mask=np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="mask has shape"):
        kofn.topk(x, 1, mask=np.array([True, False, True]))
    with pytest.raises(TypeError, match='static_argnames="k"'):
        jax.jit(kofn.topk)(jnp.asarray(x), 1)


def test_nothing_to_choose(framework):
    for shape, k in (((2, 0), 0), ((0, 3), 2), ((2, 3), 0)):
        found = kofn.topk(framework.array(np.zeros(shape)), k)
        assert found.values.shape == found.indices.shape == (shape[0], k)
