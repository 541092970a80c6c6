"""KSubset at its edges: k, masks, infinities, NaN, types, shapes; and its errors."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from kofn import KSubset, hard_topk

INF = math.inf


def normal(shape, seed=3):
    return np.random.default_rng(seed).standard_normal(shape)


def close(got, wanted, tolerance):
    return np.allclose(np.asarray(got, float), np.asarray(wanted, float), rtol=0, atol=tolerance)


def test_k_0_and_k_n(framework):
    y = framework.array([1.0, 2.0, 3.0])
    none, every = KSubset(y, 0), KSubset(y, 3)
    assert framework.numpy(none.marginals()).tolist() == [0, 0, 0]
    assert framework.numpy(every.marginals()).tolist() == [1, 1, 1]
    assert framework.numpy(none.log_partition()) == 0
    assert framework.numpy(every.log_partition()) == 6
    for choice, only in ((none, [0.0, 0, 0]), (every, [1.0, 1, 1])):
        assert framework.numpy(choice.entropy()) == 0
        assert framework.numpy(choice.kl(choice)) == 0
        assert framework.numpy(choice.log_prob(framework.array(only))) == 0
        assert framework.numpy(choice.log_prob(framework.array([1.0, 0, 0]))) == -INF
        v = choice.covariance_vector_product(framework.array([1.0, -2.0, 0.5]))
        assert framework.numpy(v).tolist() == [0, 0, 0]
    for n in (5, 7):  # where the weights of the nodes add up to 1 − 1e-16
        assert framework.numpy(KSubset(framework.array(np.zeros(n)), n).entropy()) == 0


def test_k_per_row(framework):
    y = normal((4, 6))
    k = np.array([0, 2, 5, 6])
    wanted = np.stack([KSubset(row, int(m)).marginals() for row, m in zip(y, k, strict=True)])
    ks = {"numpy": k, "torch": torch.tensor(k), "jax": jnp.asarray(k)}[framework.name]
    choice = KSubset(framework.array(y), ks)
    assert close(framework.numpy(choice.marginals()), wanted, 1e-14)
    assert np.array_equal(
        framework.numpy(choice.mode()), framework.numpy(hard_topk(framework.array(y), ks))
    )


def test_a_k_that_there_is_not_spoils_its_row_alone():
    y = normal((4, 6))
    choice = KSubset(y, np.array([2, 7, -1, 6]))
    for answer in (choice.marginals(), choice.log_partition(), choice.entropy()):
        answer = answer.reshape(4, -1)
        assert np.isfinite(answer[[0, 3]]).all()
        assert np.isnan(answer[[1, 2]]).all()


def test_a_mask_is_as_if_deleted(framework):
    y = normal((2, 7))
    keep = np.array([True, False, True, True, True, False, True])
    hidden = np.where(keep, y, math.nan)
    choice = KSubset(framework.array(hidden), 3, mask=framework.array(keep, "bool"))
    short = KSubset(y[:, keep], 3)
    p = framework.numpy(choice.marginals())
    assert close(p[:, keep], short.marginals(), 1e-14)
    assert not np.any(p[:, ~keep])
    for what in ("log_partition", "entropy"):
        got = framework.numpy(getattr(choice, what)())
        assert close(got, getattr(short, what)(), 1e-14)
    impossible = framework.array([0.0, 1, 1, 1, 0, 0, 0])
    assert (
        framework.numpy(
            KSubset(framework.array(y[0]), 3, mask=framework.array(keep, "bool")).log_prob(
                impossible
            )
        )
        == -INF
    )


def test_fewer_left_than_k_and_none_at_all(framework):
    y = framework.array([[1.0, 2.0, -INF, -INF], [-INF] * 4])
    choice = KSubset(y, 3)
    assert framework.numpy(choice.marginals()).tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]
    assert framework.numpy(choice.log_partition()).tolist() == [3, 0]
    assert framework.numpy(choice.entropy()).tolist() == [0, 0]
    assert framework.numpy(choice.mode()).tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]
    assert framework.numpy(choice.log_prob(choice.marginals())).tolist() == [0, 0]
    if framework.name == "numpy":
        return
    slopes = {"marginals": np.zeros((2, 4)), "log_partition": [[1, 1, 0, 0], [0] * 4]}
    for method, wanted in slopes.items():
        one = getattr(choice, method)() * 0 + 1
        (slope,) = framework.vjp(lambda y, m=method: getattr(KSubset(y, 3), m)(), (y,), one)
        assert np.array_equal(slope, wanted)


def test_infinite_logits_are_chosen_first(framework):
    y = [[INF, 1.0, 0.5, -1.0, INF], [INF, INF, 0.5, INF, 2.0], [INF, 0.0, 1.0, 2.0, -INF]]
    choice = KSubset(framework.array(y), 2)
    p = framework.numpy(choice.marginals())
    assert close(p[0], [1, 0, 0, 0, 1], 0)
    assert close(p[1], [2 / 3, 2 / 3, 0, 2 / 3, 0], 1e-15)
    assert close(p[2, 1:4], np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum(), 1e-14)
    assert close(framework.numpy(choice.entropy())[:2], [0, math.log(3)], 1e-15)
    assert framework.numpy(choice.log_partition()).tolist() == [INF] * 3
    chosen = framework.array([[1.0, 0, 0, 0, 1], [1, 0, 0, 1, 0], [0, 1, 1, 0, 0]])
    assert close(framework.numpy(choice.log_prob(chosen))[:2], [0, -math.log(3)], 1e-15)
    assert framework.numpy(choice.log_prob(chosen))[2] == -INF
    assert framework.numpy(KSubset(framework.array(y), 0).marginals()).tolist() == [[0] * 5] * 3


def test_nan_stays_in_its_row(framework):
    y = normal((3, 5))
    y[1, 2], y[1, 4] = math.nan, -INF
    choice = KSubset(framework.array(y), 2)
    p = framework.numpy(choice.marginals())
    assert np.isfinite(p[[0, 2]]).all()
    assert np.isnan(p[1, :4]).all()
    assert p[1, 4] == 0
    for answer in (choice.log_partition(), choice.entropy(), choice.log_prob(choice.mode())):
        assert np.isnan(framework.numpy(answer)).tolist() == [False, True, False]


def test_equal_scores_far_below_the_others_share_what_is_left():
    lowest = 0.499 * np.finfo(np.float32).min
    y = np.array([1.0, lowest, 0.5, 0.0, lowest], np.float32)
    p = KSubset(y, 2).marginals()
    assert close(p[[0, 2, 3]], KSubset(y[[0, 2, 3]], 2).marginals(), 1e-7)
    assert p[1] == p[4] == 0
    assert close(KSubset(y, 4).marginals(), [1, 0.5, 1, 1, 0.5], 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_computed_in_float32(dtype):
    y = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    choice, exact = KSubset(y, 5), KSubset(y.float(), 5)
    assert choice.marginals().dtype == y.dtype
    assert torch.equal(choice.marginals(), exact.marginals().to(y.dtype))
    assert choice.log_partition().dtype == torch.float32
    assert torch.equal(choice.entropy(), exact.entropy())


def test_any_dim_and_shape(framework):
    y = normal((2, 5, 3))
    for dim in (0, 1, -1, -2):
        last = KSubset(np.moveaxis(y, dim, -1), 2 if dim else 1)
        choice = KSubset(framework.array(y), 2 if dim else 1, dim=dim)
        assert choice.batch_shape == last.batch_shape
        assert close(
            np.moveaxis(framework.numpy(choice.marginals()), dim, -1),
            last.marginals(),
            0 if framework.name == "numpy" else 1e-14,
        )
        mode = np.moveaxis(framework.numpy(choice.mode()), dim, -1)
        assert np.array_equal(mode, last.mode())
        many = framework.array(np.stack([framework.numpy(choice.mode())] * 4))
        log_p = framework.numpy(choice.log_prob(many))
        assert log_p.shape == (4, *choice.batch_shape)
        assert close(log_p[2], last.log_prob(last.mode()), 1e-13)
    for shape in ((0, 4), (3, 0), (1,)):
        choice = KSubset(framework.array(np.zeros(shape)), min(1, shape[-1]))
        assert tuple(choice.marginals().shape) == shape
        assert tuple(choice.entropy().shape) == shape[:-1]
        assert tuple(choice.log_prob(choice.mode()).shape) == shape[:-1]


def test_read_only_and_broadcast_arrays():
    y = np.broadcast_to(normal(6), (3, 6))
    assert np.ptp(KSubset(y, 2).marginals(), axis=0).max() == 0
    t = torch.arange(6.0).expand(3, 6)
    assert torch.equal(KSubset(t, 2).marginals()[0], KSubset(t[0].clone(), 2).marginals())


def test_a_row_does_not_depend_on_the_others():
    y = normal((5, 33))
    together = KSubset(y, 4).marginals()
    alone = np.stack([KSubset(row, 4).marginals() for row in y])
    assert close(together, alone, 1e-15)


def test_kl_of_supports_that_differ(framework):
    a = framework.array([1.0, 0.5, -INF, 0.2])
    b = framework.array([1.0, 0.5, 0.3, 0.2])
    assert framework.numpy(KSubset(b, 2).kl(KSubset(a, 2))) == INF
    assert np.isfinite(framework.numpy(KSubset(a, 2).kl(KSubset(b, 2))))
    assert framework.numpy(KSubset(b, 2).kl(KSubset(b, 3))) == INF
    certain = KSubset(framework.array([-INF, 0.0, 0.0, -INF]), 2)
    wanted = -framework.numpy(KSubset(b, 2).log_prob(framework.array([0.0, 1, 1, 0])))
    assert close(framework.numpy(certain.kl(KSubset(b, 2))), wanted, 1e-14)
    assert framework.numpy(KSubset(b, 2).kl(KSubset(b, 2))) == 0
    first = KSubset(framework.array([INF, 0.5, 0.3, 0.2]), 2)  # which every subset of it holds
    assert framework.numpy(KSubset(b, 2).kl(first)) == INF
    assert framework.numpy(first.kl(KSubset(b, 2))) > 0


def test_log_prob_of_what_is_no_subset():
    choice = KSubset(np.zeros(4), 2)
    assert choice.log_prob(np.array([1, 1, 1, 0])) == -INF
    assert choice.log_prob(np.array([1, 1, 0, 0])) == pytest.approx(-math.log(6))
    assert np.isnan(choice.log_prob(np.array([0.5, 0.5, 1, 0])))


# --- errors ---


@pytest.mark.parametrize("k", [1.0, 2.5, "2", None, True, [1, 2]])
def test_k_of_the_wrong_kind(k):
    with pytest.raises(TypeError, match=r"k must be an integer in \[0, n\] \(here n = 4"):
        KSubset(np.zeros((3, 4)), k)


@pytest.mark.parametrize("k", [-1, 5, np.int64(7)])
def test_k_out_of_range(k):
    with pytest.raises(ValueError, match=r"k must be an integer in \[0, n\] \(here n = 4"):
        KSubset(np.zeros((3, 4)), k)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, 2.0], 1), TypeError, "logits must be a torch.Tensor"),
        ((np.zeros(3, int), 1), TypeError, "logits must have dtype"),
        ((np.zeros((3, 4)), np.ones(3)), TypeError, "array of integers; got dtype float64"),
        ((np.zeros((3, 4)), np.ones((3, 2), int)), ValueError, "logits.shape without dim"),
        ((np.zeros((3, 4)), torch.ones(3, dtype=torch.int)), TypeError, "logits a ndarray"),
        ((np.zeros((3, 4)), 1, 2), ValueError, "dim must be in"),
        ((np.zeros((3, 4)), 1, -1, np.zeros(4)), TypeError, "mask must be boolean"),
        ((np.zeros((3, 4)), 1, -1, np.zeros((2, 4), bool)), ValueError, "the shape of logits"),
    ],
)
def test_arguments_of_the_wrong_kind(arguments, error, message):
    with pytest.raises(error, match=message):
        KSubset(*arguments)


def test_wrong_arguments_of_methods():
    choice = KSubset(np.zeros((3, 4)), 2)
    with pytest.raises(ValueError, match=r"subset has shape \(4,\); it must end in"):
        choice.log_prob(np.zeros(4))
    with pytest.raises(TypeError, match="subset is a Tensor and logits a ndarray"):
        choice.log_prob(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="v must have the shape of logits"):
        choice.covariance_vector_product(np.zeros(4))
    with pytest.raises(TypeError, match="other must be a KSubset"):
        choice.kl(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="other must have logits of shape"):
        choice.kl(KSubset(np.zeros((4, 3)), 2, dim=0))


def test_it_says_what_it_is():
    assert (
        repr(KSubset(np.zeros((3, 4)), 2, dim=0)) == "KSubset(logits of shape (3, 4), k=2, dim=-2)"
    )
