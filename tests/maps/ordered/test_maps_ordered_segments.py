"""segment_topk and segment_quantile: those of each segment alone."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kofn
from kofn.maps.ordered.interpolated import INTERPOLATIONS
from support import Framework

INF, NAN = math.inf, math.nan
FRAMEWORKS = ["numpy", "torch", "jax"]
IDS = np.array([2, 0, 2, 2, 4, 0, 4, 2, 4, 4, 4, 2])
SEGMENTS = 6  # two of them, 1 and 3, and the last are empty


def array(framework, values, dtype=None):
    values = np.asarray(values)
    return Framework(framework).array(values, dtype or str(values.dtype))


def numbers(seed, *shape, ties=True, dtype="float32"):
    x = np.random.default_rng(seed).standard_normal(shape)
    x = np.round(2 * x) if ties else x
    return x.astype(dtype)


def alone(x, mask, k, largest):
    """Values and indices within x, with what follows where there are fewer than k."""
    least = -INF if largest else INF
    if np.issubdtype(x.dtype, np.integer):
        least = np.iinfo(x.dtype).min if largest else np.iinfo(x.dtype).max
    playing = np.flatnonzero(mask)
    found = kofn.topk(x[playing], min(k, len(playing)), largest=largest)
    outside = np.flatnonzero(~mask)
    indices = [*playing[found.indices], *outside, *[-1] * k][:k]
    values = [*found.values, *[least] * k][:k]
    return values, indices


@pytest.mark.parametrize(
    ("framework", "masked"),
    [(name, True) for name in FRAMEWORKS]
    + [
        pytest.param(name, False, marks=pytest.mark.full if name == "jax" else [])
        for name in FRAMEWORKS
    ],
)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.sampled_from([0, 1, 3, 8]),
    largest=st.booleans(),
    columns=st.sampled_from([(), (2,), (2, 3)]),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64", "uint8", "float16"]),
    by=st.sampled_from(["ids", "ptr"]),
)
def test_the_largest_are_those_of_each_segment(
    framework, masked, seed, k, largest, columns, dtype, by
):
    if framework == "jax" and dtype in ("float64", "int64"):
        dtype = dtype.replace("64", "32")
    x = numbers(seed, 12, *columns, dtype="float32")
    x = (x + 10 if dtype == "uint8" else x).astype(dtype)
    if "float" in dtype and seed % 3 == 0:
        x[seed % 12] = NAN
    rng = np.random.default_rng(seed)
    ids = IDS if by == "ids" else np.sort(IDS)
    mask = rng.random(x.shape) < 0.6 if masked else np.ones(x.shape, bool)
    ptr = np.searchsorted(ids, np.arange(SEGMENTS + 1))
    of = dict(ptr=ptr) if by == "ptr" else dict(segment_ids=ids, num_segments=SEGMENTS)
    of = {name: n if isinstance(n, int) else array(framework, n) for name, n in of.items()}
    given = {"mask": array(framework, mask)} if masked else {}
    found = kofn.segment_topk(array(framework, x, dtype), k, largest=largest, **of, **given)
    values, indices = (Framework(framework).numpy(each) for each in found)
    assert values.shape == indices.shape == (SEGMENTS, k, *columns)
    for segment in range(SEGMENTS):
        (where,) = np.nonzero(ids == segment)
        for column in np.ndindex(*columns):
            row = x[(where, *column)]
            wanted, places = alone(row, mask[(where, *column)], k, largest)
            inside = [where[place] if place >= 0 else -1 for place in places]
            assert np.array_equal(indices[(segment, slice(None), *column)], inside)
            got = values[(segment, slice(None), *column)]
            assert np.array_equal(got, wanted, equal_nan="float" in dtype)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize(
    "framework", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.full)]
)
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    columns=st.sampled_from([(), (3,)]),
    several=st.booleans(),
    masked=st.booleans(),
    ignore_nan=st.booleans(),
    temperature=st.sampled_from([0.0, 0.0, 0.3]),
)
def test_quantiles_are_those_of_each_segment(framework, interpolation, **how):
    check_quantiles(framework, interpolation, **how)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("columns", [(), (3,)])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("ignore_nan", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.3])
@pytest.mark.parametrize("seed", [2, 3])
def test_on_jax_quantiles_are_those_of_each_segment(
    interpolation, columns, several, masked, ignore_nan, temperature, seed
):
    how = seed, columns, several, masked, ignore_nan, temperature
    check_quantiles("jax", interpolation, *how)


def check_quantiles(
    framework, interpolation, seed, columns, several, masked, ignore_nan, temperature
):
    rng = np.random.default_rng(seed)
    x = numbers(seed, 12, *columns, ties=seed % 2)
    if ignore_nan or seed % 3 == 0:
        x[seed % 12] = NAN
    mask = rng.random(x.shape) < 0.6 if masked else np.ones(x.shape, bool)
    q = np.array([0.0, 0.3, 0.77, 1.0]) if several else float(rng.random())
    how = dict(interpolation=interpolation, temperature=temperature, ignore_nan=ignore_nan)
    found = kofn.segment_quantile(
        array(framework, x),
        array(framework, q) if several else q,
        segment_ids=array(framework, IDS),
        num_segments=SEGMENTS,
        mask=array(framework, mask) if masked else None,
        **how,
    )
    found = Framework(framework).numpy(found)
    found = found if several else found[None]
    assert found.shape == (4 if several else 1, SEGMENTS, *columns)
    for segment in range(SEGMENTS):
        (where,) = np.nonzero(segment == IDS)
        for column in np.ndindex(*columns):
            row, playing = x[(where, *column)], mask[(where, *column)]
            wanted = kofn.quantile(row[playing], np.atleast_1d(q), **how)
            got = found[(slice(None), segment, *column)]
            assert np.allclose(got, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_no_entries_and_no_segments():
    for k in (0, 2):
        found = kofn.segment_topk(np.zeros((0, 3)), k, ptr=np.array([0, 0, 0]))
        assert found.values.shape == (2, k, 3)
        assert (found.values == -INF).all()
        assert (found.indices == -1).all()
        none = kofn.segment_topk(torch.zeros(0), k, ptr=torch.tensor([0]))
        assert none.indices.shape == (0, k)
    assert np.isnan(kofn.segment_quantile(np.zeros(0), 0.5, ptr=np.array([0, 0]))).all()


def test_entries_of_no_segment_are_no_one_s():
    x, ids = jnp.array([5.0, 1.0, 9.0, 3.0]), jnp.array([0, 1, -1, 7])
    jitted = jax.jit(lambda x, ids: kofn.segment_topk(x, 2, segment_ids=ids, num_segments=2))
    found = jitted(x, ids)
    assert np.array_equal(found.values, [[5, -INF], [1, -INF]])
    assert np.array_equal(found.indices, [[0, -1], [1, -1]])
    middle = jax.jit(lambda x, i: kofn.segment_quantile(x, 0.5, segment_ids=i, num_segments=2))
    assert np.array_equal(middle(x, ids), [5, 1])


def test_gradients_go_to_the_entries():
    x = torch.tensor(numbers(1, 12, 2, ties=False, dtype="float64"), requires_grad=True)
    ids = torch.tensor(IDS)

    def largest(x):
        found = kofn.segment_topk(x, 3, segment_ids=ids).values
        return torch.where(found.isinf(), 0.0, found)

    def middle(x):
        found = kofn.segment_quantile(x, 0.3, segment_ids=ids)
        return found.nan_to_num()

    def smooth(x):
        return kofn.segment_quantile(x, 0.3, segment_ids=ids, temperature=0.5).nan_to_num()

    for function in (largest, middle, smooth):
        assert torch.autograd.gradcheck(function, (x,))
        assert torch.autograd.gradgradcheck(function, (x,), fast_mode=True)
    q = torch.tensor([0.2, 0.6], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda q: kofn.segment_quantile(x.detach(), q, segment_ids=ids).nan_to_num(), (q,)
    )


def test_compiled_and_in_jax():
    x, ids = torch.tensor(numbers(2, 12)), torch.tensor(IDS)

    def both(x, ids):
        largest = kofn.segment_topk(x, 3, segment_ids=ids, num_segments=SEGMENTS)
        middle = kofn.segment_quantile(x, 0.3, segment_ids=ids, num_segments=SEGMENTS)
        return largest.values, largest.indices, middle

    wanted = both(x, ids)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for found, known in zip(compiled(x, ids), wanted, strict=True):
        assert torch.allclose(found.double(), known.double(), equal_nan=True)
    jitted = jax.jit(both)(jnp.asarray(x.numpy()), jnp.asarray(IDS))
    for found, known in zip(jitted, wanted, strict=True):
        assert np.allclose(found, known.numpy(), equal_nan=True)


def test_a_nested_tensor():
    parts = [torch.tensor([1.0, 3.0, 2.0]), torch.tensor([5.0])]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    found = kofn.segment_topk(x, 2)
    assert torch.equal(found.values, torch.tensor([[3.0, 2.0], [5.0, -INF]]))
    assert torch.equal(found.indices, torch.tensor([[1, 2], [3, -1]]))
    assert torch.equal(kofn.segment_quantile(x, 0.5), torch.tensor([2.0, 5.0]))


def test_errors_name_the_argument():
    x, ptr = np.zeros(4), np.array([0, 4])
    for call, error, words in (
        (lambda: kofn.segment_topk(x, -1, ptr=ptr), ValueError, "k must be an integer ≥ 0"),
        (lambda: kofn.segment_topk(x, 1.5, ptr=ptr), TypeError, "k must be an integer ≥ 0"),
        (lambda: kofn.segment_topk(x, 2), ValueError, "give either segment_ids or ptr"),
        (lambda: kofn.segment_topk([1.0], 2, ptr=ptr), TypeError, "x must be a torch.Tensor"),
        (lambda: kofn.segment_quantile(x, 2.0, ptr=ptr), ValueError, "q must be a number in"),
        (
            lambda: kofn.segment_quantile(np.arange(4), 0.5, ptr=ptr),
            TypeError,
            "x must have dtype float",
        ),
        (
            lambda: kofn.segment_topk(x, 2, ptr=ptr, mask=np.ones(3, bool)),
            ValueError,
            r"mask has shape \(3,\); it must broadcast to the shape of x",
        ),
    ):
        with pytest.raises(error, match=words):
            call()
