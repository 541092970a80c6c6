"""DTensor: sharded scores have the answers and gradients of whole ones, on two processes."""

import traceback

import pytest
import torch
from torch import distributed

import kofn
from kofn import losses
from ranks import joined, run_on_ranks

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)


def maps():
    target = torch.zeros(4, 2, 6)
    target[..., :2] = 1
    labels = torch.arange(8).reshape(4, 2) % 6
    k = torch.arange(1.0, 9.0).reshape(4, 2) / 2
    temperature = 0.5 + torch.arange(8.0).reshape(4, 2) / 8
    return {
        "number": lambda x, like: kofn.soft_topk(x, 2.5, temperature=0.7),
        "per row": lambda x, like: kofn.soft_topk(x, like(k), temperature=like(temperature)),
        "laplace": lambda x, like: kofn.soft_topk(x, 2.5, link="laplace", temperature=0.7),
        "hard": lambda x, like: kofn.soft_topk(x, 2, hard=True),
        "hard_topk": lambda x, like: kofn.hard_topk(x, 2.5),
        "gates": lambda x, like: kofn.topk_gates(x, 2)[0],
        "mask": lambda x, like: kofn.soft_topk(x, 2, mask=x > -1),
        "dim": lambda x, like: kofn.soft_topk(x, 2, dim=0),
        "threshold": lambda x, like: kofn.soft_topk_threshold(x, 2),
        "sum": lambda x, like: kofn.soft_topk_sum(x, 2, link="entmax"),
        "softmax": lambda x, like: kofn.softmax(x),
        "entmax": lambda x, like: kofn.entmax(x, 1.3),
        "alpha per row": lambda x, like: kofn.entmax(x, like(temperature + 1)),
        "log": lambda x, like: kofn.log_soft_topk(x, 2),
        "loss": lambda x, like: losses.fenchel_young_loss(x, like(target), reduction="none"),
        "topk_loss": lambda x, like: losses.topk_loss(x, like(target), reduction="none"),
        "softmax_loss": lambda x, like: losses.softmax_loss(x, like(labels), reduction="none"),
        "entmax_loss": lambda x, like: losses.entmax_loss(x, like(labels), reduction="none"),
        "sparse softmax": lambda x, like: kofn.sparse_softmax(x, k=2),
        "knapsack": lambda x, like: kofn.soft_knapsack(x, like(torch.arange(1.0, 7.0)), 5),
        "marginals": lambda x, like: kofn.KSubset(x, 2).marginals(),
        "log_partition": lambda x, like: kofn.KSubset(x, 2).log_partition(),
        "subset entropy": lambda x, like: kofn.KSubset(x, 2).entropy(),
        "mode": lambda x, like: kofn.KSubset(x, 2).mode(),
        "temperature": lambda x, like: kofn.temperature_for(x, 2, gap=0.3),
        "temperatures": lambda x, like: kofn.temperature_for(x, 2, support=2.5, per_row=True),
    }


def same_as_whole(names=None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    size = distributed.get_world_size()
    mesh, square = init_device_mesh("cpu", (size,)), init_device_mesh("cpu", (size, 1))
    torch.manual_seed(0)
    x, v = torch.randn(4, 2, 6), torch.randn(4, 2, 6)
    cases = [(mesh, [p]) for p in (Shard(0), Shard(1), Replicate(), Shard(2))]
    cases.append((square, [Shard(0), Shard(1)]))
    wrong = []
    every = maps()
    for name in names or every:
        function, whole = every[name], x.clone().requires_grad_()
        expected = function(whole, lambda a: a)
        cotangent = v[..., : expected.shape[-1]] if expected.ndim == 3 else v[..., 0]
        moves = expected.requires_grad
        if moves:
            expected.backward(cotangent)
        for on, placements in cases if name in ("number", "marginals") else cases[:4]:
            part = distribute_tensor(x, on, placements).requires_grad_()

            def like(a, on=on):
                return distribute_tensor(a, on, [Replicate()] * on.ndim)

            try:
                answer = function(part, like)
                assert torch.allclose(answer.full_tensor(), expected, atol=2e-6, rtol=1e-5)
                if moves:
                    answer.backward(like(cotangent))
                    gradient = part.grad.full_tensor()
                    assert torch.allclose(gradient, whole.grad, atol=2e-6, rtol=1e-5)
            except Exception:
                wrong.append(f"{name} {placements}: {traceback.format_exc(limit=-3)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("kernels", "names"),
    [
        ("reference", ["per row", "softmax_loss"]),
        ("on", ["per row", "softmax_loss", "temperature", "temperatures"]),
    ],
)
def test_distributed_scores_have_the_answers_of_local_ones(kernels, names):
    """On a mesh of one process, where everything but the communication happens."""
    with joined(distributed.HashStore(), 0, 1, kernels):
        same_as_whole(names)


def test_samples_of_distributed_scores_are_refused():
    """Every process would draw its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    with joined(distributed.HashStore(), 0, 1):
        x = distribute_tensor(torch.randn(2, 6), init_device_mesh("cpu", (1,)), [Replicate()])
        draws = (
            lambda: kofn.KSubset(x, 2).sample(),
            lambda: kofn.Categorical(x).sample((3,)),
            lambda: kofn.RelaxedOneHot(x, 0.5).rsample(rng=torch.Generator()),
        )
        for draw in draws:
            with pytest.raises(TypeError, match=r"sample from its full_tensor\(\)"):
                draw()


@pytest.mark.full
@pytest.mark.parametrize("kernels", ["reference", "on"])
def test_sharded_scores_have_the_answers_of_whole_ones(tmp_path, kernels):
    run_on_ranks(tmp_path / "store", 2, same_as_whole, kernels=kernels)


def _operator_calls():
    """Every operator of compiled functions, with numbers and with tensors per row."""
    operators = torch.ops.kofn
    x, k, labels = torch.randn(4, 3, 6), torch.full((4, 3), 2.0), torch.zeros(4, 3).long()
    for rows in (
        (None, 2.0, None, 1.0, "logistic", None),
        (k, None, k, None, "logistic", None),
    ):
        for name in ("weights", "hard_weights", "log_weights"):
            yield getattr(operators, name), (x, *rows)
        theta = operators.weights(x, *rows)[1]
        yield operators.located, (x, *rows)
        yield operators.located_backward, (k, x, theta, *rows)
        for name in ("weights_backward", "log_weights_backward"):
            yield getattr(operators, name), (x, x, theta, *rows)
        for slopes in (True, False):
            yield operators.value, (x, *rows, slopes)
            yield operators.gap, (x, torch.full_like(x, 1 / 3), *rows, False, slopes)
        yield operators.hard, (x, *rows[:2])
    yield from _subset_calls(x, k)
    yield from _noise_calls(x)
    yield from _calls_of_each_alpha(x, k)
    softmax = None, 1.0, None, 1.0, "exponential", None
    yield operators.gap, (x, labels, *softmax, True, True)
    yield operators.value_backward, (k, x, x)
    yield operators.largest, (x, 2)
    yield operators.first, (x, 2, 0)
    yield operators.first_of_masked, (x, x > 0, 2, 1)
    ranks = torch.zeros(*x.shape[:-1], 2, dtype=torch.int64)
    yield operators.ranked, (x, ranks)
    yield operators.ranked_of_masked, (x, x > 0, ranks)
    for t in ((None, 1.0), (k, None)):
        yield operators.truncated, (x, 2, None, *t)
        yield operators.truncated_backward, (x, x, x, *t)
        yield operators.truncated_loss, (x, labels, None, 0.8, *t, True)


def _calls_of_each_alpha(x, k):
    operators = torch.ops.kofn
    link = kofn.links.entmax(1.5).inner.id
    for rows in ((None, 2.0, None, 1.0, link), (k, None, k, None, link)):
        found, theta = operators.weights_each_alpha(x, k - 0.5, *rows)
        yield operators.weights_each_alpha, (x, k - 0.5, *rows)
        yield operators.weights_each_alpha_backward, (x, x, found, theta, k - 0.5, *rows)
        for of_alpha in (True, False):
            for name in ("weights", "log_weights"):
                back = getattr(operators, f"{name}_each_alpha_slopes")
                yield back, (x, x, theta, k - 0.5, *rows, of_alpha)
            wanted = False, of_alpha, True
            yield operators.gap_each_alpha, (x, torch.full_like(x, 1 / 3), k - 0.5, *rows, *wanted)


def _subset_calls(x, k):
    operators = torch.ops.kofn
    placed = operators.subset_marginals(x, k)[1]
    yield operators.subset_marginals, (x, k)
    yield operators.subset_marginals_backward, (x, x, k, placed)
    yield operators.subset_log_count, (x, k)
    yield operators.subset_log_count_backward, (k, x, k)
    yield operators.subset_tails, (x, k)
    yield operators.subset_tails_backward, (x, x, k)
    yield operators.subset_covariance, (x, k, x)


def _noise_calls(x):
    operators = torch.ops.kofn
    for noise in (("logistic", None, [], []), ("linear", None, [-0.5, 0.5], [0.0, 1.0])):
        y = x - x.amax(-1, keepdim=True)
        p, kept = operators.noisy_argmax(y, *noise)
        yield operators.noisy_argmax, (y, *noise)
        yield operators.noisy_argmax_backward, (x, y, p, kept, *noise)


def test_operators_of_compiled_functions_keep_shards_of_the_batch():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    with joined(distributed.HashStore(), 0, 1), torch.no_grad():
        mesh = init_device_mesh("cpu", (1,))

        def sharded(a):
            if not isinstance(a, torch.Tensor):
                return a
            return distribute_tensor(a, mesh, [Shard(first(a))])

        def first(a):
            """Return the first batch dimension."""
            return 2 if a.ndim > 3 else int(a.ndim == 3 and a.shape[0] in (2, 3))

        for operator, arguments in _operator_calls():
            whole, parts = operator(*arguments), operator(*map(sharded, arguments))
            several = isinstance(whole, tuple)
            for ours, theirs in zip(
                parts if several else [parts], whole if several else [whole], strict=True
            ):
                assert ours.shape == theirs.shape
                if ours.numel():
                    assert ours.placements == (Shard(first(ours)),), operator
                    assert torch.equal(ours.full_tensor(), theirs), operator


def test_segments_of_a_dtensor_are_refused():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    with joined(distributed.HashStore(), 0, 1):
        scores = distribute_tensor(torch.randn(5), init_device_mesh("cpu", (1,)), [Replicate()])
        with pytest.raises(TypeError, match="scores is a DTensor"):
            kofn.segment_soft_topk(scores, 1, ptr=torch.tensor([0, 2, 5]))
