"""hard_topk and quantile of integers, exactly; the soft maps refuse them, and say what to write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import kofn
from support import Framework, jax_x64

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def of(name, x):
    return x if name == "numpy" else Framework(name).array(x, str(x.dtype))


def default_of(name):
    """The dtype of a float in a framework, as its users have it."""
    return {"numpy": "float64", "torch": "float32", "jax": str(jnp.asarray(0.0).dtype)}[name]


def by_sorting(x, k, mask=None):
    """One row: 1 at the ⌊k⌋ largest, the fraction at the next, ties to the lowest index."""
    places = [i for i in range(len(x)) if mask is None or mask[i]]
    places.sort(key=lambda i: (-int(x[i]), i))
    weights = np.zeros(len(x))
    for rank, i in enumerate(places):
        weights[i] = min(max(k - rank, 0), 1)
    return weights


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_hard_topk_is_that_of_a_sort(name, dtype):
    rng = np.random.default_rng(0)
    info = np.iinfo(dtype)
    few = rng.integers(0, 5, (6, 9)).astype(dtype)  # with ties
    wide = rng.integers(info.min, info.max, (6, 9), dtype, endpoint=True)
    wide[0, :3] = info.min, info.max, info.max - 1
    mask = rng.random((6, 9)) < 0.6
    mask[0] = False
    for x in (few, wide):
        for k in (0, 2, 3.25, 9):
            for m in (None, mask):
                found = kofn.hard_topk(of(name, x), k, mask=None if m is None else of(name, m))
                assert Framework(name).dtype(found) == default_of(name)
                wanted = [by_sorting(x[i], k, None if m is None else m[i]) for i in range(6)]
                assert np.array_equal(Framework(name).numpy(found), wanted), (k, m)


def test_the_example_of_the_articles(framework):
    x = framework.array([3, 2, 1, 4], "int32")
    assert framework.numpy(kofn.hard_topk(x, 2)).tolist() == [1, 0, 0, 1]
    assert framework.numpy(kofn.topk(x, 2).values).tolist() == [4, 3]
    assert float(kofn.quantile(x, 0.5)) == 2.5


def test_k_of_each_row_and_any_dimension(framework):
    x = np.random.default_rng(1).integers(0, 9, (4, 5, 3))
    k = np.array([[0.0, 1.0, 2.5], [3.0, 4.0, 5.0], [1.5, 0.5, 2.0], [5.0, 4.5, 0.0]])
    found = framework.numpy(kofn.hard_topk(framework.array(x, "int32"), framework.array(k), dim=1))
    for i in range(4):
        for j in range(3):
            assert found[i, :, j] == pytest.approx(by_sorting(x[i, :, j], k[i, j]), abs=1e-6)
    bad = framework.array([6.0, -1.0, 2.0], "float32")
    found = framework.numpy(kofn.hard_topk(framework.array(x[0].T, "int32"), bad))
    assert np.isnan(found[:2]).all()
    assert found[2].sum() == 2


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_integers_that_are_equal_as_floats(name):
    x = of(name, np.array([2**60 + 1, 2**60, 2**60 + 2, 2**60], np.int64))
    assert Framework(name).numpy(kofn.hard_topk(x, 2)).tolist() == [1, 0, 1, 0]
    assert kofn.topk(x, 1).indices.tolist() == [2]
    odd = of(name, np.array([2**53 + 2, 2**53, 2**53 + 4], np.int64))
    torch.set_default_dtype(torch.float64)
    try:
        assert float(kofn.quantile(odd, 0.5)) == 2**53 + 2
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_quantile_is_that_of_numpy(name, dtype):
    rng = np.random.default_rng(2)
    x = rng.integers(0, 100, (4, 7)).astype(dtype)
    q = np.array([0.0, 0.13, 0.5, 1.0])
    for interpolation in ("linear", "lower", "higher", "midpoint", "nearest"):
        found = kofn.quantile(of(name, x), of(name, q), dim=-1, interpolation=interpolation)
        assert Framework(name).dtype(found) == default_of(name)
        wanted = np.quantile(x.astype(float), q, axis=-1, method=interpolation)
        assert Framework(name).numpy(found) == pytest.approx(wanted, rel=1e-6)
    mask = rng.random((4, 7)) < 0.7
    found = kofn.quantile(of(name, x), 0.3, dim=-1, mask=of(name, mask), ignore_nan=True)
    wanted = [np.quantile(x[i][mask[i]].astype(float), 0.3) for i in range(4)]
    assert Framework(name).numpy(found) == pytest.approx(wanted, rel=1e-6)


def test_the_smooth_quantile_of_integers_is_that_of_floats(framework):
    x = np.random.default_rng(3).integers(0, 50, (3, 8))
    whole, floats = framework.array(x, "int32"), framework.array(x, "float64")
    for T in (0.5, 5.0):
        a, b = (
            framework.numpy(kofn.quantile(y, 0.4, dim=-1, temperature=T)) for y in (whole, floats)
        )
        assert a == pytest.approx(b, rel=1e-6)


def test_rows_without_entries(framework):
    none = framework.array(np.zeros((2, 0)), "int32")
    assert kofn.hard_topk(none, 0).shape == (2, 0)
    mask = framework.array(np.zeros((2, 0)), "bool")
    assert kofn.hard_topk(none, 0, mask=mask).shape == (2, 0)
    assert np.isnan(framework.numpy(kofn.quantile(none, 0.5, dim=-1))).all()
    assert kofn.hard_topk(framework.array(np.zeros((0, 3)), "int32"), 2).shape == (0, 3)


def test_compiled_traced_and_mapped():
    x = np.random.default_rng(4).integers(0, 9, (3, 6)).astype(np.int32)
    wanted = kofn.hard_topk(x, 2.5), kofn.quantile(x, 0.3, dim=-1)

    def both(x):
        return kofn.hard_topk(x, 2.5), kofn.quantile(x, 0.3, dim=-1)

    for answers in (
        jax.jit(both)(jnp.asarray(x)),
        jax.jit(jax.vmap(both))(jnp.asarray(x)),
        torch.compile(both, backend="eager", fullgraph=True)(torch.tensor(x)),
        torch.func.vmap(both)(torch.tensor(x)),
    ):
        for found, right in zip(answers, wanted, strict=True):
            assert np.asarray(found) == pytest.approx(right, rel=1e-6)
    with jax_x64(False):
        for found in jax.eval_shape(both, jnp.asarray(x)):
            assert found.dtype == jnp.float32


HINTS = {"numpy": r"\.astype\(float\)", "torch": r"\.float\(\)", "jax": r'\.astype\("float32"\)'}


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_soft_maps_refuse_integers_and_say_how_to_cast(framework, dtype):
    x = framework.array([3, 2, 1, 4], dtype)
    hint = HINTS[framework.name]
    for function in (
        lambda: kofn.soft_topk(x, 2),
        lambda: kofn.soft_topk_threshold(x, 2),
        lambda: kofn.soft_topk_sum(x, 2),
        lambda: kofn.softmax(x),
        lambda: kofn.sparsemax(x),
        lambda: kofn.entmax(x),
        lambda: kofn.perturbed_argmax(x),
        lambda: kofn.topk_gates(x, 2),
    ):
        with pytest.raises(
            TypeError, match=rf"scores must have dtype .*cast it, as in scores{hint}"
        ):
            function()
    with pytest.raises(TypeError, match=rf"logits must .* as in logits{hint}"):
        kofn.KSubset(x, 2)
    if dtype == "bool":
        with pytest.raises(TypeError, match=rf"scores must .* as in scores{hint}"):
            kofn.hard_topk(x, 2)
        with pytest.raises(TypeError, match=rf"x must .* as in x{hint}"):
            kofn.quantile(x, 0.5)


def test_other_dtypes_have_no_hint():
    for x in (np.zeros(3, complex), np.array(["a", "b"])):
        with pytest.raises(TypeError, match=r"scores must have dtype .*; got [^;]*$"):
            kofn.soft_topk(x, 1)


def test_k_and_mask_of_integers_are_checked():
    x = np.array([3, 2, 1, 4])
    with pytest.raises(ValueError, match=r"k must be a number in \[0, n\] \(here n = 4"):
        kofn.hard_topk(x, 5)
    with pytest.raises(TypeError, match="mask must be boolean"):
        kofn.hard_topk(x, 2, mask=np.ones(4))
    with pytest.raises(ValueError, match="dim must be in"):
        kofn.hard_topk(x, 2, dim=1)


def at_ends(dtype, seed=0):
    """Rows of the numbers at both ends of an integer type, with ties, some of one number alone."""
    info, rng = np.iinfo(dtype), np.random.default_rng(seed)
    ends = np.array([info.min, info.min + 1, info.max - 1, info.max], dtype)
    x = ends[rng.integers(0, 4, (8, 9))]
    x[0], x[1], x[2, 1:] = info.min, info.max, info.max
    mask = rng.random((8, 9)) < 0.6
    mask[:2, :2] = [[True, False], [False, True]]
    mask[3] = False
    return x, mask


def in_order(x, mask, largest):
    """Of one row the places in play, in their order."""
    places = [i for i in range(len(x)) if mask is None or mask[i]]
    return sorted(places, key=lambda i: (-int(x[i]) if largest else int(x[i]), i))


@pytest.mark.parametrize("kernels", ["on", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_numbers_at_the_ends_of_their_type_are_in_play(name, dtype, kernels, monkeypatch):
    """The least key of a kernel stands for what is not."""
    monkeypatch.setenv("KOFN_KERNELS", kernels)
    x, some = at_ends(dtype)
    read, given = np.asarray, of(name, x)
    for mask in (None, some):
        m = {} if mask is None else {"mask": of(name, mask)}
        rows = [(x[i], None if mask is None else mask[i]) for i in range(len(x))]
        for largest in (True, False):
            found = kofn.topk(given, 5, largest=largest, **m)
            for (row, playing), values, at in zip(rows, *map(read, found), strict=True):
                wanted = in_order(row, playing, largest)[:5]
                assert at[: len(wanted)].tolist() == wanted
                assert values[: len(wanted)].tolist() == row[wanted].tolist()
        hard = read(kofn.hard_topk(given, 3, **m))
        assert hard.tolist() == [by_sorting(row, 3, playing).tolist() for row, playing in rows]
        for interpolation in ("lower", "higher"):
            found = read(kofn.quantile(given, 0.4, dim=-1, interpolation=interpolation, **m))
            for (row, playing), number in zip(rows, found, strict=True):
                order = in_order(row, playing, largest=False)
                place = 0.4 * (len(order) - 1)
                place = np.floor(place) if interpolation == "lower" else np.ceil(place)
                wanted = float(row[order[int(place)]]) if order else np.nan
                assert number == pytest.approx(wanted, rel=1e-6, nan_ok=True)


def test_quantile_of_the_least_number_of_a_type():
    assert kofn.quantile(np.arange(5, dtype=np.uint64), 0.5) == 2.0
    for dtype in ("int32", "int64"):
        assert kofn.quantile(np.array([np.iinfo(dtype).min, 0, 1], dtype), 0.5) == 0.0
