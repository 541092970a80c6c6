"""patch_routers: which experts, which weights, what learns, and what is refused."""

import warnings

import pytest
import torch

from tiny_models import EXPERTS, GROUPED, MODELS, made, patched, routers, tokens

pytestmark = pytest.mark.extras
every_model = pytest.mark.parametrize("model", MODELS)
NORMALIZE_ALWAYS = ("mixtral", "gpt_oss")
WAYS = {
    "hard": {},
    "topk": dict(gates="topk"),
    "balance": dict(balance=1e-2),
    "soft": dict(selection="soft"),
    "expert_choice": dict(selection="expert_choice", inference_threshold=True),
    "budget": dict(selection="budget", inference_threshold=True, max_experts=4),
}


@pytest.fixture(autouse=True)
def own_library():
    pytest.importorskip("transformers")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def pairs(model, options=None, **changes):
    """A stock router and kofn's with the same parameters, and a correction bias that matters."""
    both = routers(made(model, **changes))[0], routers(patched(model, 0, options, **changes))[0]
    for router in both:
        if model in GROUPED:
            router.e_score_correction_bias.copy_(torch.linspace(-0.3, 0.4, EXPERTS))
    return both


@every_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("k", [2, EXPERTS // 2])
def test_a_hard_choice_is_that_of_the_stock_router(model, dtype, k):
    stock, ours = pairs(model, num_experts_per_tok=k)
    x = torch.randn(200, 16).to(dtype)
    for router in (stock, ours):
        router.weight.data = router.weight.data.to(dtype)
        if model == "gpt_oss":
            router.bias.data = router.bias.data.to(dtype)
    for mode in (True, False):
        answers = stock(x), ours.train(mode)(x)
        for wanted, found in zip(*answers, strict=True):
            assert torch.equal(wanted, found)
            assert wanted.dtype == found.dtype


@every_model
@pytest.mark.parametrize("normalize", [True, False])
def test_gates_of_the_configuration_are_followed_and_can_be_changed(model, normalize):
    changes = {} if model in NORMALIZE_ALWAYS else dict(norm_topk_prob=normalize)
    stock, ours = pairs(model, dict(normalize=normalize))
    followed = routers(patched(model, **changes))[0]
    x = torch.randn(20, 16)
    weights = ours(x)[1]
    scale = getattr(stock, "routed_scaling_factor", 1.0)
    sums = weights.sum(-1) / scale
    assert torch.allclose(sums, torch.ones(20)) == normalize
    assert ours.routing.normalize == normalize
    assert followed.routing.normalize == (normalize or model in NORMALIZE_ALWAYS)
    logits, _, indices = stock(x)
    shares = logits.sigmoid() if model in GROUPED else logits.softmax(-1)
    shares = scale * shares.gather(-1, indices)
    assert torch.allclose(
        weights if not normalize else weights * shares.sum(-1)[:, None] / scale, shares
    )


@every_model
@pytest.mark.parametrize("way", ["hard", "topk"])
def test_every_expert_of_every_token_gets_a_gradient(model, way):
    stock, ours = pairs(model, WAYS[way])

    def gradients(router):
        router.zero_grad()
        _, weights, _ = router(torch.linspace(-1, 1, 16)[None])
        (weights * torch.linspace(1, 2, weights.shape[-1])).sum().backward()
        sizes = router.weight.grad.abs().sum(-1)
        return sizes > 1e-5 * sizes.max()  # a normalized softmax leaves rounding errors

    assert gradients(ours).all()
    if model in (*GROUPED, *NORMALIZE_ALWAYS, "qwen3_moe"):
        assert gradients(stock).sum() == 2  # those that it has chosen


@every_model
def test_every_expert_of_a_whole_model_gets_a_gradient(model):
    net, x = patched(model), tokens(1, 4)
    net(x, labels=x).loss.backward()
    assert all((each.weight.grad.abs().sum(-1) > 0).all() for each in routers(net))


@every_model
@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains(model, way):
    if model in GROUPED and way not in ("hard", "topk"):
        return
    from kofn import nn

    net, x = patched(model, options=WAYS[way]), tokens()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(8):
        loss = net(x, labels=x).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        nn.step_routers(net)
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for router in routers(net):
        assert router.weight.grad.isfinite().all()
        assert router.routing.statistics()["assignments"] > 0
        if way == "balance":
            assert router.routing.balance.net_steps.any()


@every_model
def test_topk_gates_keep_the_scaling_factor(model):
    stock, ours = pairs(model, dict(gates="topk"))
    x = torch.randn(20, 16)
    wanted, found = stock(x), ours(x)
    assert torch.equal(found[2], wanted[2])
    scale = getattr(stock, "routed_scaling_factor", 1.0)
    if ours.routing.normalize:
        assert torch.allclose(found[1].sum(-1), torch.full((20,), scale))
    assert ((found[1] > 0) & (found[1] < scale)).all()


def test_a_balancing_bias_chooses_but_the_gates_do_not_know_it():
    _, ours = pairs("mixtral", WAYS["balance"])
    ours.routing.balance.net_steps[5] = 10_000
    logits, weights, indices = ours(torch.randn(20, 16))
    assert (indices == 5).any(-1).all()
    assert torch.allclose(weights, logits.gather(-1, indices).softmax(-1), atol=1e-6)


@pytest.mark.parametrize("model", ["mixtral", "qwen2_moe", "gpt_oss"])
def test_soft_weights_are_those_of_all_experts(model):
    _, ours = pairs(model, WAYS["soft"])
    _, weights, indices = ours(torch.randn(20, 16))
    assert weights.shape == indices.shape == (20, EXPERTS)
    assert torch.allclose(weights.sum(-1), torch.ones(20))


@pytest.mark.parametrize("way", ["expert_choice", "budget"])
@pytest.mark.parametrize("model", ["mixtral", "olmoe", "gpt_oss"])
def test_in_eval_a_token_does_not_see_later_ones(model, way):
    net = patched(model, options=WAYS[way], attn_implementation="eager")
    for seed in range(3):
        net(tokens(seed=seed))  # the thresholds run
    assert all(each.routing.running.updates == 3 for each in routers(net))
    x = tokens()
    other = torch.cat([x[:, :5], tokens(seed=7)[:, 5:]], 1)
    net.eval()
    with torch.no_grad():
        assert torch.allclose(net(x).logits[:, :5], net(other).logits[:, :5], atol=1e-6)
        assert torch.allclose(net(x).logits[:1], net(x[:1]).logits, atol=1e-6)
    width = WAYS[way].get("max_experts", EXPERTS)
    _, weights, indices = routers(net)[0](torch.randn(20, 16))
    assert weights.shape == (20, width)
    assert ((indices >= 0) & (indices < EXPERTS)).all()
    assert (weights > 0).any()


@pytest.mark.parametrize("selection", ["expert_choice", "budget"])
def test_a_causal_model_needs_the_running_threshold(selection):
    from kofn.integrations.transformers import patch_routers

    with pytest.raises(ValueError, match=r"inference_threshold must be True .* got False"):
        patch_routers("mixtral", selection=selection)


@pytest.mark.parametrize("model", ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_a_single_gate_is_not_normalized_which_is_said_once(model):
    with pytest.warns(UserWarning, match="single gate") as caught:
        net = patched(model, num_experts_per_tok=1)
    assert len(caught) == 1
    router = routers(net)[0]
    assert not router.routing.normalize
    logits, weights, indices = router(torch.randn(20, 16))
    shares = logits.sigmoid() if model in GROUPED else logits.softmax(-1)
    scale = getattr(router, "routed_scaling_factor", 1.0)
    assert torch.allclose(weights, scale * shares.gather(-1, indices))
    net(tokens(), labels=tokens()).loss.backward()
    stock = made(model, num_experts_per_tok=1)
    stock(tokens(), labels=tokens()).loss.backward()
    largest = [routers(each)[0].weight.grad.abs().max() for each in (net, stock)]
    assert largest[0] > 1e-4 > 1e-6 > largest[1]


def test_a_single_gate_that_the_model_does_not_normalize_needs_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nets = (
            patched("olmoe", num_experts_per_tok=1),
            patched("mixtral", options=dict(normalize=False), num_experts_per_tok=1),
        )
    for net in nets:
        _, weights, _ = routers(net)[0](torch.randn(20, 16))
        assert (weights < 1).all()


REFUSED = {
    "no model": ([], {}, "models must name at least one of"),
    "a model": ([torch.nn.Linear(2, 2)], {}, "got a Linear: give names, before models are made$"),
    "unknown": (["gpt2"], {}, r"models must be among \('mixtral', .* got 'gpt2'"),
    "selection": (["olmoe"], dict(selection="top"), "selection must be .* got 'top'"),
    "temperature": (["olmoe"], dict(temperature=-1.0), "temperature must be .* got -1.0"),
    "balance": (["olmoe"], dict(balance=-1.0), "balance must be .* got -1.0"),
    "normalized budget": (
        ["olmoe"],
        dict(selection="budget", inference_threshold=True, normalize=True),
        "normalize must be False for selection='budget'",
    ),
    "groups": (["glm4_moe"], dict(selection="soft"), "selection must be 'hard' for 'glm4_moe'"),
    "correction": (["deepseek_v3"], dict(balance=0.1), "balance must be None for 'deepseek_v3'"),
    "threshold": (["olmoe"], dict(inference_threshold=True), "inference_threshold is for"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_name_the_argument_its_value_and_what_is_allowed(case):
    from kofn.integrations.transformers import patch_routers
    from kofn.integrations.transformers.routers import table

    models, options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        patch_routers(*models, **options)
    assert not table.ACTIVE


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        (dict(normalize=True), dict(num_experts_per_tok=1), "normalize must be False for k = 1"),
        (
            dict(selection="budget", inference_threshold=True, max_experts=99),
            {},
            r"max_experts must be an integer in \[2, 8\], .* got 99",
        ),
    ],
)
def test_what_does_not_fit_a_configuration_is_refused_when_the_model_is_made(
    options, changes, message
):
    from transformers.models.mixtral import modeling_mixtral

    from kofn.integrations.transformers import patch_routers, unpatch_routers

    stock = modeling_mixtral.MixtralTopKRouter
    patch_routers("mixtral", verbose=False, **options)
    with pytest.raises(ValueError, match=message):
        made("mixtral", **changes)
    assert modeling_mixtral.MixtralTopKRouter is stock
    unpatch_routers()
    with pytest.raises(ValueError, match=message):
        patched("mixtral", options=options, **changes)
    assert modeling_mixtral.MixtralTopKRouter is stock
