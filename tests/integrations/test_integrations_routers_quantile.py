"""patch_routers(balance="quantile"): every family, and the correction bias of those with groups."""

import copy
import pickle

import pytest
import torch

from tiny_models import EXPERTS, GROUPED, MODELS, logged, patched, routers, tokens

pytestmark = pytest.mark.extras
every_model = pytest.mark.parametrize("model", MODELS)
QUANTILE = dict(balance="quantile")


@pytest.fixture(autouse=True)
def own_library():
    pytest.importorskip("transformers")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def stepped(net, steps=4, **options):
    from kofn import nn

    found = []
    for seed in range(steps):
        net(tokens(16, 32, seed), **options)
        found.append([each.routing.statistics()["max_violation"].item() for each in routers(net)])
        nn.step_routers(net)
    return found


@every_model
@pytest.mark.parametrize("options", [{}, dict(bins=500), dict(ema=0.5)], ids=str)
def test_the_load_becomes_even(model, options):
    net = patched(model, options=QUANTILE | options).train()
    before, *_, after = stepped(net, 10)
    assert sum(after) < 0.7 * sum(before)  # equal tokens have equal experts, so it is not even
    for router in routers(net):
        assert router.routing.balance().any()
        assert router.routing.balance().isfinite().all()


@every_model
def test_the_choice_is_that_of_the_bias_and_the_gates_do_not_know_it(model):
    router = routers(patched(model, options=QUANTILE).train())[0]
    bias = torch.linspace(-0.3, 0.3, EXPERTS)
    router.routing.balance.bias.copy_(bias)
    logits, weights, indices = router(torch.randn(50, 16))
    shares = logits.sigmoid() if model in GROUPED else logits.softmax(-1)
    chosen = shares.gather(-1, indices)
    if router.routing.normalize:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    scale = getattr(router, "routed_scaling_factor", 1.0)
    assert torch.allclose(weights, scale * chosen, atol=1e-6)
    if model not in GROUPED:
        assert torch.equal(indices, (logits + bias).topk(2).indices)
    (slope,) = torch.autograd.grad((weights * torch.randn_like(weights)).sum(), logits)
    assert (slope != 0).all()


@every_model
def test_a_bias_that_stock_models_leave_out_is_told_once_when_it_is_saved(model):
    from kofn.integrations.transformers.routers import table

    table.tell_of_saving.cache_clear()
    with logged("WARNING") as records:
        patched(model).state_dict()  # without a balance
        assert not records
        net = patched(model, options=QUANTILE)
        for _ in range(2):
            net.state_dict()
    said = [each.getMessage() for each in records]
    assert len(said) == (model not in GROUPED)
    assert all("loaded without patch_routers" in each for each in said)


@pytest.mark.parametrize("model", GROUPED)
def test_the_bias_is_the_stock_models_own(model, tmp_path):
    from transformers import AutoModelForCausalLM

    net = patched(model, options=QUANTILE).train()
    stepped(net)
    for router in routers(net):
        assert router.routing.balance.bias is router.e_score_correction_bias
        assert router.e_score_correction_bias.any()
        assert not [name for name in router.state_dict() if "routing" in name]
    net.eval().save_pretrained(tmp_path)
    stock, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    x = tokens()
    assert torch.equal(stock.eval()(x).logits, net(x).logits)
    # And from the stock model back.
    from kofn.integrations.transformers import patch_routers

    stock.save_pretrained(tmp_path / "again")
    with patch_routers(model, verbose=False, **QUANTILE):
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    for one, other in zip(routers(net), routers(again), strict=True):
        assert torch.equal(one.routing.balance(), other.routing.balance())
        assert other.routing.balance.bias is other.e_score_correction_bias
        assert not other.routing.balance.tokens.any()


@pytest.mark.parametrize("model", [each for each in MODELS if each not in GROUPED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_is_saved_and_loaded_with_its_bias(model, dtype, tmp_path):
    from transformers import AutoModelForCausalLM

    from kofn.integrations.transformers import patch_routers

    options = QUANTILE | dict(bins=300)
    net = patched(model, options=options).train()
    stepped(net)
    net.save_pretrained(tmp_path)
    with patch_routers(model, verbose=False, **options):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    for one, other in zip(routers(net), routers(loaded), strict=True):
        assert other.weight.dtype == dtype
        assert other.routing.balance().dtype == torch.float32
        assert torch.equal(one.routing.balance(), other.routing.balance())
        assert not other.routing.balance.histogram.any()
        assert other.routing.balance.ends.tolist() == [-torch.inf] * 2
    if dtype == torch.float32:
        assert torch.equal(net.eval()(tokens()).logits, loaded.eval()(tokens()).logits)
        assert stepped(loaded.train(), 2)


@pytest.mark.parametrize("model", ["mixtral", "deepseek_v3"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_counts_a_token_once(model, reentrant):
    x, found = tokens(4, 16), []
    for checkpoints in (False, True):
        net = patched(model, options=QUANTILE).train()
        if checkpoints:
            net.activation_checkpointing_enable({"use_reentrant": reentrant})
        net(x, labels=x, use_cache=False).loss.backward()
        found.append([each.routing.balance.tokens.clone() for each in routers(net)])
        assert all((each == x.numel()).all() for each in found[-1])


@pytest.mark.parametrize("model", ["mixtral", "deepseek_v3"])
def test_a_compiled_model_observes_the_same(model):
    torch.compiler.reset()
    net, x = patched(model, options=QUANTILE).train(), tokens()
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for each in (compiled, twin):
        each(x, labels=x).loss.backward()
    for one, other in zip(routers(net), routers(twin), strict=True):
        assert torch.allclose(one.routing.balance.mean, other.routing.balance.mean, atol=1e-6)
        assert torch.equal(one.routing.balance.tokens, other.routing.balance.tokens)


@pytest.mark.parametrize("model", ["mixtral", "deepseek_v3"])
def test_copies_have_a_bias_of_their_own(model):
    net = patched(model, options=QUANTILE).train()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        stepped(other)
        for one, two in zip(routers(net), routers(other), strict=True):
            assert not one.routing.balance().any()
            assert two.routing.balance().any()
            if model in GROUPED:
                assert two.routing.balance.bias is two.e_score_correction_bias


@pytest.mark.parametrize("model", ["mixtral", "deepseek_v3"])
def test_the_state_goes_to_other_libraries(model):
    from kofn.integrations.expert_bias import export_expert_bias, load_expert_bias

    router = routers(patched(model, options=QUANTILE))[0]
    wanted = torch.arange(EXPERTS).float()
    form, name = ("torchtitan", "expert_bias_E") if model in GROUPED else ("megatron", "qb_beta")
    load_expert_bias(router, {name: wanted})
    assert torch.equal(export_expert_bias(router, form)[name], wanted)
    assert torch.equal(router.routing.balance(), wanted if model in GROUPED else -wanted)


@pytest.mark.parametrize("model", GROUPED)
def test_the_correction_bias_of_a_model_in_bfloat16_is_float32(model):
    net = patched(model, options=QUANTILE).train().bfloat16()
    stepped(net)
    for router in routers(net):
        bias = router.e_score_correction_bias
        assert router.weight.dtype == torch.bfloat16
        assert bias.dtype == torch.float32
        assert router.routing.balance.bias is bias
        assert not torch.equal(bias, bias.bfloat16().float())


def test_evaluation_observes_nothing():
    for model in ("mixtral", "deepseek_v3"):
        net = patched(model, options=QUANTILE).eval()
        stepped(net, 2)
        for router in routers(net):
            assert not router.routing.balance().any()
            assert not router.routing.balance.tokens.any()
