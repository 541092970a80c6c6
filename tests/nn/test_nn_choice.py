"""nn.SoftTopK: soft in training, whole in eval() and in the last steps, k learned or not."""

import copy
import io

import pytest
import torch
from torch import distributed

from kofn import hard_topk, nn, schedules, soft_topk
from ranks import joined

X = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))


def choice(k=3, schedule=10, **options):
    torch.manual_seed(1)
    made = nn.SoftTopK(12, k, schedule=schedule, **options)
    with torch.no_grad():
        made.scores.mul_(100)
    return made


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        yield


def test_in_training_it_is_soft_topk_at_the_temperature_of_the_schedule():
    made = choice(link="normal")
    for step in range(7):
        cool = schedules.exponential(1.0, 0.01, steps=7)(step)
        assert made.current_temperature().item() == pytest.approx(cool)
        wanted = soft_topk(made.scores, 3, link="normal", temperature=cool)
        assert torch.allclose(made(X), X * wanted, atol=1e-5)
        (found,) = torch.autograd.grad(made(X).square().sum(), made.scores)
        (slope,) = torch.autograd.grad((X * wanted).square().sum(), made.scores)
        assert torch.allclose(found, slope, rtol=1e-3, atol=1e-4)
        made.step()
    assert made.mask is not None


def test_in_eval_exactly_k_are_1_whatever_the_step():
    made = choice().eval()
    weights = made.weights()
    assert torch.equal(weights, hard_topk(made.scores, 3))
    assert torch.equal(made(X), X * weights)
    assert made.train().weights().max() < 1


def test_from_70_percent_of_the_steps_on_the_choice_stays_whatever_the_scores_become():
    made = choice(schedule=100)
    for _ in range(69):
        made.step()
    assert made.mask is None
    before = made.eval().weights()
    made.train().step()
    assert torch.equal(made.weights(), before)
    assert not made.weights().requires_grad
    with torch.no_grad():
        made.scores.neg_()
    assert torch.equal(made.weights(), before)
    assert torch.equal(made.eval().weights(), before)
    made.reset_parameters()
    assert made.train().weights().requires_grad
    assert made.steps == 0


def test_with_a_function_of_the_step_it_is_whole_when_it_is_told():
    made = choice(schedule=lambda step: 1.0 / (1 + step))
    for _ in range(200):
        made.step()
    assert made.weights().requires_grad
    made.freeze()
    assert made.weights().sum() == 3


@pytest.mark.parametrize(("k", "wanted"), [(3.4, 3), (3.6, 4), (1.0, 1), (12, 12)])
def test_a_learned_k_has_a_gradient_and_is_rounded(k, wanted):
    made = choice(k, learned_k=True)
    assert made.weights().sum().item() == pytest.approx(k, abs=1e-5)
    (made(X).square().sum() + made.current_k().sum()).backward()
    assert made.k.log.grad.abs().item() > 0
    weights = made.eval().weights()
    assert weights.unique().tolist() == [0.0, 1.0][wanted == 12 :]
    assert weights.sum() == wanted
    made.train().freeze()
    assert torch.equal(made.weights(), weights)
    assert made.current_k() == wanted  # and no more learned
    assert not made.current_k().requires_grad


def test_a_price_lowers_a_learned_k():
    made = choice(8.0, learned_k=True)
    optimizer = torch.optim.Adam([made.score_parameters()])
    for _ in range(30):
        optimizer.zero_grad()
        made.current_k().sum().backward()
        optimizer.step()
    assert made.current_k() < 6


def test_k_may_fall_by_a_schedule():
    made = choice(schedules.exponential(12.0, 3.0, steps=4))
    for wanted in (12, 8.485, 6):
        assert made.weights().sum().item() == pytest.approx(wanted, abs=1e-3)
        assert made.eval().weights().sum() == round(wanted)
        made.train().step()


def start():
    model = torch.nn.Sequential(torch.nn.Linear(12, 12), choice(5.0, learned_k=True))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        (model(X) - X[:, [0]]).square().mean().backward()
        optimizer.step()
        model[1].step()


@pytest.mark.parametrize("first", [4, 9])
def test_a_run_that_is_resumed_goes_on_the_same(first):
    """From before the choice is fixed, and from after it."""
    model, optimizer = start()
    train(model, optimizer, first)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    again, other = start()
    again.load_state_dict(saved["model"])
    other.load_state_dict(saved["optimizer"])
    train(model, optimizer, 3)
    train(again, other, 3)
    assert (model[1].mask is None) == (again[1].mask is None)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert torch.equal(copy.deepcopy(model)(X), model(X))
    again.load_state_dict(start()[0].state_dict())
    assert again[1].mask is None


def test_half_precision_in_is_half_precision_out_and_k_keeps_its_digits():
    made = choice(3.3, learned_k=True).bfloat16()
    assert made(X.bfloat16()).dtype == torch.bfloat16
    assert made.k.log.dtype == torch.float32
    assert choice()(X.double()).dtype == torch.float64


def test_a_compiled_step_answers_the_same_before_and_after_the_choice_is_fixed():
    made = choice(3.4, learned_k=True)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    for _ in range(9):
        found, wanted = compiled(X), made(X)
        assert torch.allclose(found, wanted, atol=1e-5)
        if wanted.requires_grad:
            a, b = (
                torch.autograd.grad(y.square().sum(), [*made.parameters()]) for y in (found, wanted)
            )
            assert all(
                torch.allclose(p, q, rtol=1e-3, atol=1e-4) for p, q in zip(a, b, strict=True)
            )
        made.step()


def test_several_choices_at_once_by_vmap():
    made = choice()
    scores = torch.randn(4, 12)

    def weights(each):
        return torch.func.functional_call(made, {"scores": each}, (X,))

    found = torch.func.vmap(weights)(scores)
    assert torch.allclose(found, torch.stack([weights(each) for each in scores]), atol=1e-6)


@pytest.mark.skipif(not distributed.is_available(), reason="PyTorch without torch.distributed")
def test_distributed_data_parallel_trains_on_once_the_choice_is_fixed():
    from torch.nn.parallel import DistributedDataParallel

    with joined(distributed.HashStore(), 0, 1):
        made = choice(3.4, learned_k=True, schedule=2)
        model = DistributedDataParallel(torch.nn.Sequential(made, torch.nn.Linear(12, 2)))
        for _ in range(4):
            model(X).square().mean().backward()
            made.step()
        assert made.mask is not None
        before = made.scores.grad.clone()
        model(X).square().mean().backward()
        assert torch.equal(made.scores.grad, before)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.SoftTopK(0, 1, schedule=9), "n must be an integer ≥ 1; got 0"),
        (lambda: nn.SoftTopK(8, 9, schedule=9), r"k must be an integer in \[1, n\] \(here n = 8\)"),
        (lambda: nn.SoftTopK(8, 2.5, schedule=9), r"k must be an integer in \[1, n\]"),
        (
            lambda: nn.SoftTopK(8, 0.5, schedule=9, learned_k=True),
            r"k must be a number in \[1, n\] \(here n = 8\); got 0.5",
        ),
        (lambda: nn.SoftTopK(8, 2, schedule=0), "schedule must be a number of steps ≥ 1, or a"),
        (lambda: nn.SoftTopK(8, 2, schedule=0.1), "schedule must be a number of steps ≥ 1, or a"),
        (lambda: nn.SoftTopK(8, 2, schedule=9, link="probit"), "link must be"),
        (lambda: choice()(X[:, :5]), r"x must have shape \[..., n\] \(here 12\); got \(5, 5\)"),
        (lambda: choice()([1.0] * 12), "x must be a torch.Tensor; got a list"),
    ],
)
def test_errors_name_the_argument(make, words):
    with pytest.raises((TypeError, ValueError), match=f"^{words}"):
        make()


def test_a_network_keeps_what_it_reads_with_one_rate_for_all():
    """The trap that the guide of temperatures shows: nothing is lost when the choice is whole."""
    torch.manual_seed(0)
    x = torch.randn(500, 12)
    y = x[:, [1, 4, 7]].sum(-1, keepdim=True) + 0.1 * torch.randn(500, 1)
    made = nn.SoftTopK(12, 3, schedule=300)
    model = torch.nn.Sequential(made, torch.nn.Linear(12, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        made.step()
    assert made.eval().weights().nonzero().flatten().tolist() == [1, 4, 7]
    assert (model(x) - y).square().mean() < 0.02
