"""Wrong arguments: the error names the argument, its value and what is allowed."""

import ast
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
import torch

import kofn
from kofn import (
    entmax,
    fenchel_young_loss,
    hard_topk,
    links,
    soft_topk,
    soft_topk_sum,
    soft_topk_threshold,
    softmax,
    topk_gates,
)

X = np.zeros((3, 4))


@pytest.mark.parametrize("function", [soft_topk, soft_topk_threshold, soft_topk_sum, hard_topk])
@pytest.mark.parametrize("k", [-1, 4.5, 5, math.nan, math.inf, np.float64(-0.1), 10**400])
def test_k_outside_0_and_n(function, k):
    with pytest.raises(ValueError, match=r"k must be a number in \[0, n\] \(here n = 4"):
        function(X, k)


@pytest.mark.parametrize("k", [True, "2", None, [1, 2], 1j, np.True_])
def test_k_of_the_wrong_kind(k):
    with pytest.raises(TypeError, match=r"k must be a number in \[0, n\]"):
        soft_topk(X, k)


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf, np.float32(0)])
def test_temperature_not_above_0(temperature):
    for function in (soft_topk, soft_topk_sum, soft_topk_threshold):
        with pytest.raises(ValueError, match="temperature must be a finite number > 0"):
            function(X, 2, temperature=temperature)
    with pytest.raises(ValueError, match="temperature must be a finite number > 0"):
        softmax(X, temperature=temperature)


def test_temperature_of_the_wrong_kind():
    with pytest.raises(TypeError, match="temperature must be"):
        soft_topk(X, 2, temperature="warm")


@pytest.mark.parametrize("alpha", [0.5, 0.999, math.nan, math.inf])
def test_alpha_below_1(alpha):
    with pytest.raises(ValueError, match="alpha must be a finite number ≥ 1"):
        entmax(X, alpha)
    with pytest.raises(ValueError, match="alpha must be a finite number ≥ 1"):
        links.entmax(alpha)


@pytest.mark.parametrize(
    "scores", [np.zeros((2, 3), int), torch.zeros(3, dtype=torch.int64), np.zeros(3, complex)]
)
def test_scores_of_an_integer_or_complex_dtype(scores):
    for call in (lambda: soft_topk(scores, 1), lambda: softmax(scores), lambda: entmax(scores)):
        with pytest.raises(TypeError, match="scores must have dtype float16, bfloat16, float32"):
            call()


def test_scores_that_are_no_array():
    with pytest.raises(TypeError, match=r"scores must be a torch.Tensor, jax.Array or numpy"):
        soft_topk([1.0, 2.0], 1)
    with pytest.raises(ValueError, match="at least one dimension"):
        soft_topk(np.array(1.0), 1)


@pytest.mark.parametrize("dim", [2, -3, 10])
def test_dim_out_of_range(dim):
    with pytest.raises(ValueError, match=r"dim must be in \[-2, 1\]"):
        soft_topk(X, 1, dim=dim)


@pytest.mark.parametrize("dim", [1.0, None, "last", True])
def test_dim_of_the_wrong_kind(dim):
    with pytest.raises(TypeError, match="dim must be an integer"):
        soft_topk(X, 1, dim=dim)


def test_k_and_temperature_broadcast_to_the_batch_shape_and_never_enlarge_it():
    for name, call in {
        "k": lambda v: soft_topk(X, v),
        "temperature": lambda v: soft_topk(X, 1, temperature=v),
        "alpha": lambda v: entmax(X, v),
    }.items():
        for shape in ((3, 2), (4,), (2, 3), (1, 3)):
            pattern = rf"{name} has shape \({shape[0]}.*batch shape .*\(3,\)"
            with pytest.raises(ValueError, match=pattern):
                call(np.ones(shape) * 1.5)
        call(np.ones(()) * 1.5)
        call(np.ones((1,)) * 1.5)


def test_masks_are_boolean_and_broadcast_to_the_scores():
    with pytest.raises(TypeError, match="mask must be boolean"):
        soft_topk(X, 1, mask=np.ones((3, 4)))
    with pytest.raises(ValueError, match=r"mask has shape \(2, 4\).*the shape of scores, \(3, 4\)"):
        soft_topk(X, 1, mask=np.ones((2, 4), bool))
    with pytest.raises(ValueError, match="mask has shape"):
        soft_topk(X, 1, mask=np.ones((1, 3, 4), bool))


def test_a_mask_inside_the_array_is_not_overlooked():
    with pytest.raises(TypeError, match=r"scores must not be a numpy\.ma\.MaskedArray"):
        soft_topk(np.ma.array(X, mask=X > 0), 1)


def test_what_is_not_a_real_number_is_refused():
    for bad in (torch.tensor(True), torch.tensor(1 + 1j)):
        with pytest.raises(TypeError, match=r"k must be real numbers, .*; got dtype torch"):
            soft_topk(torch.zeros(3), bad)
        with pytest.raises(TypeError, match="temperature must be real numbers"):
            soft_topk(torch.zeros(3), 1, temperature=bad)
    with pytest.raises(TypeError, match="k must be a number"):
        soft_topk(X, np.complex64(1 + 1j))
    with pytest.raises(TypeError, match="scores must be a dense tensor"):
        soft_topk(torch.eye(3).to_sparse(), 1)
    with pytest.raises(
        TypeError, match="target must be an array of the same framework as scores; got None"
    ):
        kofn.fenchel_young_loss(X, None)
    with pytest.raises(ValueError, match="reduction must be one of"):
        kofn.fenchel_young_loss(X, X, reduction=np.ones(3))


def test_arrays_of_different_frameworks_do_not_mix():
    with pytest.raises(TypeError, match="k is a Tensor and scores a ndarray; convert one"):
        soft_topk(X, torch.tensor(2.0))
    with pytest.raises(TypeError, match="mask is a ndarray and scores a Tensor"):
        soft_topk(torch.zeros(3, 4), 1, mask=np.ones((3, 4), bool))
    with pytest.raises(TypeError, match=r"temperature is a .* and scores a Tensor"):
        soft_topk(torch.zeros(3, 4), 1, temperature=jnp.ones(3))


def test_links_that_do_not_exist():
    with pytest.raises(ValueError, match=r"one of 'logistic', 'laplace', 'normal'.*got 'sigmoid'"):
        soft_topk(X, 1, link="sigmoid")
    with pytest.raises(TypeError, match=r"link must be a kofn\.Link"):
        soft_topk(X, 1, link=np.tanh)


@pytest.mark.parametrize("k", [1.5, True, np.ones(3), "1", None])
def test_gates_take_a_python_integer(k):
    with pytest.raises(TypeError, match="k must be a Python integer"):
        topk_gates(X, k)


def test_gates_take_no_more_than_n():
    with pytest.raises(ValueError, match="k must be"):
        topk_gates(X, 5)


def test_loss_arguments():
    with pytest.raises(ValueError, match=r"reduction must be one of 'mean', 'sum', 'none'"):
        fenchel_young_loss(X, X, reduction="average")
    with pytest.raises(ValueError, match=r"target must have the shape of scores, \(3, 4\)"):
        fenchel_young_loss(X, X[0])
    with pytest.raises(TypeError, match="target is a Tensor"):
        fenchel_young_loss(X, torch.zeros(3, 4))


def test_options_are_named():
    with pytest.raises(TypeError):
        soft_topk(X, 1, "logistic")
    assert kofn.soft_topk(X, np.int64(1)).shape == X.shape  # NumPy scalars are numbers


@pytest.mark.parametrize("kind", [lambda x, **o: kofn.KSubset(x, 2, **o), kofn.Categorical])
def test_a_divergence_names_what_the_other_distribution_must_be(kind):
    x = np.zeros((4, 4))
    with pytest.raises(TypeError, match=r"other must be a .*; got int"):
        kind(x).kl(3)
    with pytest.raises(
        ValueError, match=r"shape \(4, 4\) and dim -1; got logits of shape \(1, 4\)"
    ):
        kind(x).kl(kind(x[:1]))
    with pytest.raises(ValueError, match=r"dim -1; got .* and dim -2"):
        kind(x).kl(kind(x, dim=0))


NO_NUMBERS = {
    "object": lambda a: a.astype(object),
    "timedelta": lambda a: a.astype("timedelta64[s]"),
    "datetime": lambda a: a.astype("datetime64[s]"),
    "text": lambda a: a.astype(str),
    "bytes": lambda a: a.astype(bytes),
    "complex": lambda a: a.astype(complex),
    "structured": lambda a: np.zeros(a.shape, [("a", "f8")]),
    "void": lambda a: np.zeros(a.shape, "V8"),
    "masked": np.ma.array,
    "matrix": lambda a: np.atleast_2d(a).view(np.matrix),
    "list": lambda a: a.tolist(),
    "series": lambda a: pandas.Series(a.ravel()),
    "frame": lambda a: pandas.DataFrame(np.atleast_2d(a)),
}
ARRAY_ARGUMENTS = {
    "scores": (X, lambda v: soft_topk(v, 1)),
    "k": (np.ones(3), lambda v: soft_topk(X, v)),
    "temperature": (np.ones(3), lambda v: soft_topk(X, 1, temperature=v)),
    "alpha": (np.ones(3), lambda v: entmax(X, v)),
    "mask": (X == 0, lambda v: soft_topk(X, 1, mask=v)),
    "target": (np.eye(3, 4), lambda v: fenchel_young_loss(X, v)),
    "weight": (np.ones(4), lambda v: kofn.losses.softmax_loss(X, np.arange(3), weight=v)),
    "logits": (X, lambda v: kofn.KSubset(v, 2)),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", NO_NUMBERS)
@pytest.mark.parametrize("name", ARRAY_ARGUMENTS)
def test_arrays_that_hold_no_numbers_are_refused_by_name(name, kind):
    good, call = ARRAY_ARGUMENTS[name]
    with pytest.raises(TypeError, match=f"^{name} ") as error:
        call(NO_NUMBERS[kind](good))
    assert "\n" not in str(error.value)


def test_a_table_of_pandas_is_told_how_to_become_an_array():
    for call in (soft_topk, lambda frame, k: soft_topk(X, frame)):
        with pytest.raises(TypeError, match=r"got a? ?DataFrame; pass its to_numpy\(\)"):
            call(pandas.DataFrame(X), 1)


def test_a_length_of_time_is_no_number():
    with pytest.raises(TypeError, match="k must be a number"):
        soft_topk(X, np.timedelta64(1, "s"))
    with pytest.raises(TypeError, match="temperature must be a finite number"):
        soft_topk(X, 1, temperature=np.timedelta64(1, "s"))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_either_order_of_bytes_is_taken(dtype, rng):
    native = rng.normal(size=(3, 4)).astype(dtype)
    swapped, before = native.astype(f">{dtype}"), native.tobytes()
    k = np.array([1.0, 2.0, 1.5])
    for function in (soft_topk, soft_topk_sum, soft_topk_threshold, hard_topk):
        expected = function(native, k, dim=-1)
        np.testing.assert_array_equal(function(swapped, k.astype(">f8")), expected)
    assert soft_topk(swapped, 2).dtype == swapped.dtype
    assert native.tobytes() == before == swapped.astype(dtype).tobytes()
    if dtype == "f4":
        of_jax = soft_topk(jnp.asarray(native), k.astype(">f8"))
        np.testing.assert_array_equal(of_jax, soft_topk(jnp.asarray(native), k))
    draws = (kofn.KSubset(x, 2).sample((3,), np.random.default_rng(0)) for x in (native, swapped))
    np.testing.assert_array_equal(*draws)
    np.testing.assert_array_equal(
        fenchel_young_loss(swapped, np.arange(3).astype(">i4")),
        fenchel_young_loss(native, np.arange(3)),
    )


def test_the_lesser_of_two_is_of_two_arrays():
    """The array API takes no numbers there before 2024.12; `clip` does."""
    for path in Path(kofn.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Attribute(ast.Name("xp"), "minimum" | "maximum"), arguments):
                    numbers = [each for each in arguments if isinstance(each, ast.Constant)]
                    assert not numbers, (path.name, node.lineno)


@pytest.mark.parametrize(("name", "value"), [("hard", True), ("dim", 0)])
def test_a_traced_flag_or_dimension_is_told_to_be_static(name, value):
    with pytest.raises(
        TypeError, match=rf'^{name} must be .* traces; .*static_argnames="{name}"\)'
    ):
        jax.jit(soft_topk)(jnp.zeros((2, 3)), 1, **{name: value})
