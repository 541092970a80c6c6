"""quantile: the definitions of NumPy, for rows of any size, with gradients and a temperature."""

import itertools
import warnings
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kofn
from kofn.maps.ordered import quantiles
from kofn.maps.ordered.interpolated import INTERPOLATIONS
from support import Framework, each_compiler, full_but, with_gradients

INF, NAN = np.inf, np.nan
QS = np.array([0.0, 0.25, 0.5, 0.77, 1.0])


def of(name, x):
    return x if name == "numpy" else Framework(name).array(x, str(np.asarray(x).dtype))


def close(found, wanted, dtype="float64"):
    found, tolerance = np.asarray(found, np.float64), 1e-6 if dtype == "float32" else 1e-13
    assert found.shape == np.shape(wanted)
    assert np.allclose(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("kernels", ["on", "reference"])
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(7,), (3, 10), (2, 3, 5), (4, 1), (1, 130)]),
    spread=st.sampled_from([1e-30, 1.0, 1e30]),
    ties=st.booleans(),
    keepdim=st.booleans(),
)
def test_the_definitions_are_those_of_numpy(
    kernels, interpolation, seed, shape, spread, ties, keepdim
):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    x = (np.round(x) if ties else x) * spread
    holes = np.where(rng.random(shape) < 0.3, NAN, x)
    how = dict(interpolation=interpolation, keepdim=keepdim)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("KOFN_KERNELS", kernels)
        warnings.simplefilter("ignore")  # NumPy's, about rows of NaN
        for dim in (None, *range(len(shape))):
            for q in (float(rng.random()), QS):
                its = dict(axis=dim, method=interpolation, keepdims=keepdim)
                for name in ("numpy", "torch"):
                    own = q if np.ndim(q) == 0 else of(name, q)
                    found = kofn.quantile(of(name, x / spread), own, dim=dim, **how)
                    close(found, np.quantile(x / spread, q, **its))
                    found = kofn.quantile(of(name, holes), own, dim=dim, ignore_nan=True, **how)
                    assert np.allclose(
                        np.asarray(found) / spread,
                        np.nanquantile(holes, q, **its) / spread,
                        rtol=1e-13,
                        atol=1e-13,
                        equal_nan=True,
                    )


def test_jax_differentiates_at_a_numpy_array():
    """There stop_gradient gives that array, and not one of JAX."""
    x = np.random.default_rng(0).standard_normal((4, 16))

    def middle(x):
        return kofn.quantile(x, 0.3, dim=-1)

    value, tangent = jax.jvp(middle, (x,), (np.ones_like(x),))
    close(value, np.quantile(x, 0.3, axis=-1))
    close(tangent, np.ones(4))
    largest = jax.grad(lambda x: kofn.topk(x, 2).values.sum())(x)
    close(largest, kofn.hard_topk(x, 2))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_on_jax_they_are_those_of_numpy(interpolation):
    x = np.random.default_rng(0).standard_normal((3, 10))
    for dim in (None, 0, 1):
        found = jax.jit(partial(kofn.quantile, dim=dim, interpolation=interpolation))(x, QS)
        close(found, np.quantile(x, QS, axis=dim, method=interpolation))
    mapped = jax.jit(jax.vmap(lambda row: kofn.quantile(row, 0.3, interpolation=interpolation)))
    close(mapped(jnp.asarray(x)), np.quantile(x, 0.3, axis=-1, method=interpolation))


def test_of_two_places_as_near_the_even_one_is_nearest(framework):
    x = framework.array([0.0, 1.0, 2.0, 3.0])
    found = [framework.numpy(kofn.quantile(x, q, interpolation="nearest")) for q in (1 / 6, 0.5)]
    assert found == [0.0, 2.0]


def test_a_place_is_that_of_the_number_that_float32_stands_for():
    """0.13 in float32 is less than 0.13: of 101 numbers, "lower" would take place 12."""
    x = torch.randn(101, generator=torch.Generator().manual_seed(0))
    q = torch.arange(101) / 100
    for interpolation in INTERPOLATIONS:
        found = kofn.quantile(x, q, interpolation=interpolation)
        assert torch.equal(found, x.sort().values)


def test_rows_with_infinities(framework):
    """NumPy has NaN wherever an infinity is near."""
    x = framework.array([[-INF, 0.0, 1.0, INF], [INF] * 4, [-INF, -INF, 3.0, 4.0]])
    for q, wanted in ((0.0, [-INF, INF, -INF]), (1 / 3, [0, INF, -INF]), (0.9, [INF, INF, 3.7])):
        close(framework.numpy(kofn.quantile(x, q, dim=-1)), wanted)
    for ends, wanted in (
        ([-INF, 1.0], [-INF, -INF, -INF, 1.0]),
        ([1.0, INF], [1.0, INF, INF, INF]),
        ([-INF, INF], [-INF, NAN, NAN, INF]),
        ([-1e308, 1e308], [-1e308, -5e307, 0.0, 1e308]),
    ):
        if framework.name == "jax" and 1e308 in ends:
            continue
        for q, one in zip((0.0, 0.25, 0.5, 1.0), wanted, strict=True):
            row = framework.array(ends)
            close(framework.numpy(kofn.quantile(row, q)), one)
            if q > 0:
                middle = framework.numpy(kofn.quantile(row, q, interpolation="midpoint"))
                close(middle, one if q in (0.5, 1.0) or abs(one) == INF or one != one else 0.0)


def test_the_least_number_of_a_half_type_is_no_mask():
    x = torch.tensor([-65504.0, 1.0, 2.0], dtype=torch.float16)
    assert kofn.quantile(x, 0.0, temperature=1e-3) == x[0]


def test_a_float32_q_stands_for_the_number_that_was_meant():
    x = np.arange(11, dtype=np.float32)
    assert kofn.quantile(x, np.array(0.85, np.float32), interpolation="nearest") == 8


@pytest.mark.full
def test_smooth_quantiles_of_long_rows_are_finite():
    x = np.random.default_rng(0).random((1 << 23) + 2, np.float32)
    for q in (0.0, 0.5, 1.0):
        wanted = kofn.quantile(x.astype(np.float64), q, temperature=0.01)
        assert np.isclose(kofn.quantile(x, q, temperature=0.01), wanted, atol=1e-6)
        ptr = np.array([0, len(x)])
        found = kofn.segment_quantile(x, q, ptr=ptr, temperature=0.01)
        assert np.isclose(found[0], wanted, atol=1e-6)


def test_rows_with_a_nan_and_rows_without_numbers(framework):
    x = framework.array([[1.0, NAN, 3.0], [1.0, 2.0, 3.0], [NAN] * 3])
    close(framework.numpy(kofn.quantile(x, 0.5, dim=-1)), [NAN, 2.0, NAN])
    close(framework.numpy(kofn.quantile(x, 0.5, dim=-1, ignore_nan=True)), [2.0, 2.0, NAN])
    mask = framework.array([[True, False, True], [False, True, True], [False] * 3], "bool")
    close(framework.numpy(kofn.quantile(x, 0.5, dim=-1, mask=mask)), [2.0, 2.5, NAN])
    empty = kofn.quantile(framework.array(np.zeros((2, 0))), 0.5, dim=-1)
    close(framework.numpy(empty), [NAN, NAN])
    assert kofn.quantile(framework.array(np.zeros((0, 3))), 0.5, dim=-1).shape == (0,)


def test_an_entry_of_q_out_of_range_is_nan(framework):
    q = framework.array([-0.1, 0.5, 1.1, NAN])
    found = kofn.quantile(framework.array([1.0, 2.0, 3.0]), q)
    close(framework.numpy(found), [NAN, 2.0, NAN, NAN])


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_temperatures_down_to_the_exact_quantile(framework, interpolation):
    x = np.random.default_rng(0).standard_normal((4, 30))
    q = framework.array([0.2, 0.5, 0.9])
    exact = np.quantile(x, [0.2, 0.5, 0.9], axis=-1, method=interpolation)
    errors = []
    for temperature in (1.0, 0.1, 1e-3, 1e-6):
        found = kofn.quantile(
            framework.array(x), q, dim=-1, interpolation=interpolation, temperature=temperature
        )
        errors.append(np.abs(framework.numpy(found) - exact).max())
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.01
    assert errors[-1] < 1e-9


def test_a_smooth_quantile_leaves_out_what_the_mask_does(framework):
    x = framework.array([[1.0, 5.0, 2.0, 9.0]])
    mask = framework.array([[True, True, True, False]], "bool")
    found = kofn.quantile(x, 0.4, dim=-1, mask=mask, temperature=0.3)
    close(
        framework.numpy(found), framework.numpy(kofn.quantile(x[:, :3], 0.4, temperature=0.3))[None]
    )


@with_gradients
def test_the_gradient_goes_to_the_numbers_next_to_the_place(name):
    framework = Framework(name)
    x = framework.array([[3.0, 1.0, 2.0, 10.0]])
    one = framework.array([1.0])
    gradient = framework.vjp(lambda x: kofn.quantile(x, 0.5, dim=-1), (x,), one)[0]
    assert np.array_equal(gradient, [[0.5, 0, 0.5, 0]])
    gradient = framework.vjp(
        lambda x: kofn.quantile(x, 0.9, dim=-1, interpolation="lower"), (x,), one
    )[0]
    assert np.array_equal(gradient, [[1, 0, 0, 0]])
    q = framework.array([0.5])
    in_q = framework.vjp(lambda q: kofn.quantile(x, q, dim=-1), (q,), one[None])[0]
    close(in_q, [3 * (3.0 - 2.0)])


@pytest.mark.parametrize("temperature", [0.0, 0.3])
@with_gradients
def test_at_the_last_place_q_has_the_slope_below_it(name, temperature):
    """It was 0 there, so a learned q that had come to 1 stayed there."""
    framework = Framework(name)
    x, q = framework.array([[3.0, 1.0, 7.0, 2.0], [1.0, 5.0, -INF, 5.5]]), np.array([0.0, 1.0])

    def of(q):
        return kofn.quantile(x, q, dim=-1, temperature=temperature)

    slope = sum(framework.vjp(of, (framework.array(q),), framework.array(np.eye(2)))[0])
    step = 1e-6
    up, down = (framework.numpy(of(framework.array(each))) for each in ([step, 1], [0, 1 - step]))
    at = framework.numpy(of(framework.array(q)))
    wanted = (up[0][0] - at[0][0]) / step, (at[1][1] - down[1][1]) / step
    assert slope == pytest.approx(sum(wanted), rel=1e-4)
    assert framework.numpy(kofn.quantile(framework.array([4.0]), framework.array(1.0))) == 4


@pytest.mark.parametrize("temperature", [0, 0.3])
def test_derivatives_of_both_orders(temperature):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 9, dtype=torch.float64, generator=generator, requires_grad=True)
    q = torch.tensor([0.2, 0.55], dtype=torch.float64, requires_grad=True)

    def function(x, q):
        return kofn.quantile(x, q, dim=-1, temperature=temperature)

    assert torch.autograd.gradcheck(function, (x, q))
    assert torch.autograd.gradgradcheck(function, (x, q), fast_mode=True)
    x, q = x.detach(), q.detach()
    mapped = torch.func.vmap(lambda row: function(row, q), out_dims=1)(x)
    assert torch.allclose(mapped, function(x, q), rtol=1e-12)
    wanted = torch.autograd.functional.jacobian(lambda x: function(x, q), x)
    assert torch.allclose(torch.func.jacrev(lambda x: function(x, q))(x), wanted)


def extremes(n, dtype):
    """Rows that are ordinary, tied, of both zeros, with ±inf, a NaN, and numbers far apart."""
    x = torch.randn(9, n, generator=torch.Generator().manual_seed(n)).to(dtype)
    x[1], x[2], x[2, ::2] = (2 * x[1]).round(), 0.0, -0.0
    x[3, : n // 3], x[4, n // 2 :], x[5, n // 2] = INF, -INF, NAN
    x[6, ::3], x[7] = torch.finfo(dtype).min, torch.finfo(dtype).max
    x[8, : n // 2] = torch.finfo(dtype).min
    return x


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_number_q_and_an_array_of_it_have_the_same_answers(dtype, interpolation, monkeypatch):
    """One is answered by a kernel, the other by the steps that it takes the place of."""
    by_kernel = mock.Mock(wraps=quantiles.route.by_kernel)
    monkeypatch.setattr(quantiles.route, "by_kernel", by_kernel)
    monkeypatch.delenv("KOFN_KERNELS", raising=False)
    for n, q in itertools.product((1, 2, 3, 17, 200), (0, 0.3, 0.5, 1.0)):
        x, found = extremes(n, getattr(torch, dtype)), []
        for own in (q, torch.tensor(float(q), dtype=torch.float64)):
            y = x.clone().requires_grad_()
            answer = kofn.quantile(y, own, dim=-1, interpolation=interpolation)
            (slope,) = torch.autograd.grad(answer, y, torch.arange(1.0, 10.0, dtype=x.dtype))
            found.append((answer.detach(), slope))
        (answer, slope), (wanted, wanted_slope) = found
        assert torch.equal(answer.nan_to_num(7), wanted.nan_to_num(7))
        torch.testing.assert_close(slope, wanted_slope, equal_nan=True)
        if dtype in ("float32", "float64"):
            on_numpy = kofn.quantile(x.numpy(), q, dim=-1, interpolation=interpolation)
            assert np.array_equal(on_numpy, answer, equal_nan=True)
    called = sum(call.args[0] is quantiles.QUANTILE for call in by_kernel.call_args_list)
    assert called == 20 * (2 if dtype in ("float32", "float64") else 1)


def test_an_infinite_cotangent_stays_with_its_number():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], requires_grad=True)
    kofn.quantile(x, 0.0, dim=-1).backward(torch.tensor([INF]))
    assert x.grad.tolist() == [[INF, 0, 0, 0]]


def test_a_number_q_has_derivatives_of_both_orders():
    x = torch.randn(3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    function = partial(kofn.quantile, q=0.3, dim=-1)
    assert torch.autograd.gradcheck(function, x.requires_grad_())
    (slope,) = torch.autograd.grad((function(x) ** 2).sum(), x, create_graph=True)
    (found,) = torch.autograd.grad(slope.square().sum(), x)
    wanted = torch.func.grad(
        lambda x: torch.func.grad(lambda x: (function(x) ** 2).sum())(x).square().sum()
    )(x)
    assert torch.allclose(found, wanted)
    assert (found != 0).sum() == 6


def both(x, q):
    masked = kofn.quantile(x, 0.3, dim=0, mask=x > 0, interpolation="lower")
    return kofn.quantile(x, q, dim=-1), masked


@each_compiler
@pytest.mark.parametrize("dynamic", full_but((True,), (False, True)))
def test_compiled(dynamic, backend):
    x = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    q = torch.tensor([0.2, 0.55])
    compiled = torch.compile(both, fullgraph=True, dynamic=dynamic, backend=backend)
    for some in (x, x[:4]) if dynamic else (x,):
        for found, wanted in zip(compiled(some, q), both(some, q), strict=True):
            assert torch.allclose(found, wanted, equal_nan=True)


def test_exported():
    x = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    q = torch.tensor([0.2, 0.55])

    class Module(torch.nn.Module):
        def forward(self, x, q):
            return both(x, q)

    found = torch.export.export(Module(), (x, q)).module()(x, q)
    for one, other in zip(found, both(x, q), strict=True):
        assert torch.allclose(one, other, equal_nan=True)


def test_a_row_of_more_entries_than_torch_quantile_takes():
    x = torch.arange(17_000_000, dtype=torch.float32).flip(0)
    assert kofn.quantile(x, 0.75, interpolation="lower") == 12_749_999


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_types(name):
    x = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).to(getattr(torch, name))
    found = kofn.quantile(x, 0.3, dim=-1)
    assert found.dtype == x.dtype
    assert torch.equal(found, x.float().quantile(0.3, dim=-1).to(x.dtype))


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        (dict(q=1.5), ValueError, r"q must be a number in \[0, 1\]; got 1.5"),
        (dict(q="half"), TypeError, r"q must be a number in \[0, 1\], or an array; got 'half'"),
        (dict(q=np.zeros((2, 2))), ValueError, r"q must have at most one dimension; got .*2, 2"),
        (dict(interpolation="cubic"), ValueError, "interpolation must be one of 'linear'"),
        (dict(temperature=-1), ValueError, "temperature must be a finite number ≥ 0"),
        (dict(ignore_nan=1), TypeError, "ignore_nan must be True or False"),
        (dict(keepdim="yes"), TypeError, "keepdim must be True or False"),
        (dict(dim=2), ValueError, "dim must be in"),
        (dict(x=np.zeros(3, bool)), TypeError, "x must have dtype float16"),
    ],
)
def test_refusals_name_the_argument(how, error, message):
    given_ = dict(x=np.array([1.0, 2.0, 3.0]), q=0.5) | how
    with pytest.raises(error, match=message):
        kofn.quantile(given_.pop("x"), given_.pop("q"), **given_)
