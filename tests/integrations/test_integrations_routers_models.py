"""patch_routers in whole models: recording, saving, generation, compilers, and how it ends."""

import copy
import inspect
import pickle
import sys
import types

import pytest
import torch

from tiny_models import EXPERTS, GROUPED, MODELS, config, logged, made, patched, routers, tokens

pytestmark = pytest.mark.extras
every_model = pytest.mark.parametrize("model", MODELS)
BUDGET = dict(selection="budget", inference_threshold=True, max_experts=4)
IMPLEMENTATIONS = ("eager", "grouped_mm", "batched_mm")


@pytest.fixture(autouse=True)
def own_library():
    pytest.importorskip("transformers")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def filled_memory():
    """New memory holds the largest numbers, not zeros by luck."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def class_of(model):
    from kofn.integrations.transformers.routers import table

    return table.router_class(model), table.stock_class(model)


def gradients(net, loss):
    net.zero_grad()
    loss.backward()
    return [each.weight.grad.clone() for each in routers(net)]


@every_model
def test_raw_logits_are_recorded(model):
    from kofn.integrations.transformers import patch_routers

    stock, x = made(model), tokens()
    with patch_routers(model, verbose=False):
        plain = type(stock)(stock.config)
        loaded = made(model)
        assert len(loaded(x, output_router_logits=True).router_logits) == 2
    plain.load_state_dict(stock.state_dict())
    wanted = stock(x, output_router_logits=True, labels=x)
    for net in (plain, loaded):
        assert all(isinstance(each, class_of(model)) for each in routers(net))
        found = net(x, output_router_logits=True, labels=x)
        assert torch.equal(found.logits, wanted.logits)
        assert torch.equal(found.loss, wanted.loss)
        for one, other in zip(found.router_logits, wanted.router_logits, strict=True):
            assert one.shape == (20, EXPERTS)
            assert torch.equal(one, other)
        if model not in GROUPED:  # they have no auxiliary loss
            assert torch.equal(found.aux_loss, wanted.aux_loss)
            assert all(each.any() for each in gradients(net, found.aux_loss))


@every_model
def test_a_model_is_saved_and_loaded_bit_for_bit(model, tmp_path):
    from transformers import AutoModelForCausalLM

    from kofn.integrations.transformers import patch_routers

    options = {} if model in GROUPED else dict(balance=1e-2)
    net, x = patched(model, options=options).eval(), tokens()
    for router in routers(net):
        if options:
            router.routing.balance.net_steps.copy_(torch.arange(EXPERTS) * 100)
    net.save_pretrained(tmp_path)
    with patch_routers(model, verbose=False, **options):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    before, after = net.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(net(x).logits, loaded.eval()(x).logits)
    # Without the patch, the stock router comes back, and finds all of its own parameters.
    stock, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert all(type(each) is class_of(model)[1] for each in routers(stock))
    assert not info["missing_keys"]
    ours = {name for name in before if "routing" in name}
    assert info["unexpected_keys"] == ours
    assert bool(ours) == bool(options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_running_thresholds_are_saved(tmp_path, dtype):
    from transformers import AutoModelForCausalLM

    from kofn.integrations.transformers import patch_routers

    options = dict(BUDGET, temperature=FallingTemperature())
    net = patched("olmoe", options=options)
    for seed in range(3):
        net(tokens(seed=seed))
    net.save_pretrained(tmp_path)
    with patch_routers("olmoe", verbose=False, **options):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    for one, other in zip(routers(net), routers(loaded), strict=True):
        assert other.weight.dtype == dtype
        before, after = one.routing.state_dict(), other.routing.state_dict()
        assert before.keys() == after.keys() == {"steps", *before}
        for name in before:
            assert before[name].dtype == after[name].dtype
            assert torch.equal(before[name], after[name])
        assert after["running.cut"] != 0


class FallingTemperature:
    def __call__(self, step):
        return 1.0 / (1 + step)


@pytest.mark.usefixtures("filled_memory")
@pytest.mark.parametrize("model", MODELS)
def test_a_checkpoint_of_the_stock_model_starts_from_zero(model, tmp_path):
    from transformers import AutoModelForCausalLM

    from kofn.integrations.transformers import patch_routers

    stock = made(model).eval()
    stock.save_pretrained(tmp_path)
    options = {} if model in GROUPED else dict(BUDGET, balance=1e-2)
    for given in ({}, options):
        with patch_routers(model, verbose=False, **given):
            loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        for router in routers(loaded):
            state = [*router.routing.buffers(), router.routing.counts]
            assert len(state) == (5 if given.get("balance") else 1)
            state += [router.routing.balance.counts] if given.get("balance") else []
            assert all(each.device == router.weight.device and not each.any() for each in state)
        if not given:
            assert torch.equal(loaded.eval()(tokens()).logits, stock(tokens()).logits)


@every_model
@pytest.mark.parametrize("options", [{}, BUDGET], ids=["hard", "budget"])
def test_generation_with_a_cache_is_generation_without(model, options):
    if model in GROUPED and options:
        return
    net, x = patched(model, options=options), tokens(2, 5)
    net(tokens(4, 10))
    net.eval()
    how = dict(max_new_tokens=8, do_sample=False)
    cached = net.generate(x, use_cache=True, **how)
    assert cached.shape == (2, 13)
    assert torch.equal(cached, net.generate(x, use_cache=False, **how))
    if not options:
        assert torch.equal(cached, made(model).eval().generate(x, **how))


@every_model
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_neither_gradients_nor_counts(model, reentrant):
    x = tokens()
    found = []
    for checkpoints in (False, True):
        net = patched(model).train()
        if checkpoints:
            net.activation_checkpointing_enable({"use_reentrant": reentrant})
        rows = gradients(net, net(x, labels=x, use_cache=False).loss)
        found.append((rows, [each.routing.counts for each in routers(net)]))
    assert all(torch.equal(a, b) for a, b in zip(*(each[0] for each in found), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*(each[1] for each in found), strict=True))
    assert all(each.sum() == 2 * x.numel() for each in found[0][1])


@every_model
def test_bfloat16_autocast_gives_what_the_stock_model_gives(model):
    net, stock, x = patched(model), made(model), tokens()
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = net(x, labels=x), stock(x, labels=x)
    assert torch.equal(found.logits, wanted.logits)
    for rows in gradients(net, found.loss):
        assert rows.isfinite().all()
        assert (rows.abs().sum(-1) > 0).all()


@every_model
@pytest.mark.parametrize("options", [{}, BUDGET], ids=["hard", "budget"])
def test_all_implementations_of_experts_agree(model, options):
    if model in GROUPED and options:
        return
    net, x = patched(model, options=options), tokens()
    found = []
    for name in IMPLEMENTATIONS:
        net.set_experts_implementation(name)
        answer = net(x, labels=x)
        found.append((answer.logits, *gradients(net, answer.loss)))
    for other in found[1:]:
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize(
    ("model", "backend", "options"),
    [
        *((model, "aot_eager", {}) for model in MODELS),
        ("mixtral", "aot_eager", BUDGET),
        # A minute or more each, for the C++ compiler.
        *(pytest.param(model, "inductor", {}, marks=pytest.mark.full) for model in MODELS),
    ],
)
def test_a_compiled_model_gives_the_same(model, backend, options):
    torch.compiler.reset()
    net, x = patched(model, options=options), tokens()
    wanted = net(x, labels=x)
    rows = gradients(net, wanted.loss)
    counted = [each.routing.counts.clone() for each in routers(net)]
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    found = compiled(x, labels=x)
    assert torch.allclose(found.logits, wanted.logits, atol=1e-5)
    for one, other in zip(rows, gradients(net, found.loss), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    for one, router in zip(counted, routers(net), strict=True):
        assert torch.equal(2 * one, router.routing.counts)


@every_model
def test_a_patched_model_pickles_and_copies(model):
    net, x = patched(model, options=dict(temperature=0.5)).eval(), tokens()
    for other in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert all(type(each) is class_of(model)[0] for each in routers(other))
        assert torch.equal(net(x).logits, other(x).logits)
        assert routers(other)[0].routing.temperature == 0.5


@every_model
def test_the_patch_ends_and_stock_models_record_again(model):
    from transformers import monkey_patching

    from kofn.integrations.transformers import patch_routers, unpatch_routers

    before, x = made(model), tokens()
    module = inspect.getmodule(class_of(model)[1])
    patch_routers(model, verbose=False)
    ours = made(model)
    assert all(type(each) is class_of(model)[0] for each in routers(ours))
    for net in (before, copy.deepcopy(before), ours):  # side by side
        assert len(net(x, output_router_logits=True).router_logits) == 2
    unpatch_routers()
    unpatch_routers()  # nothing is left to end
    assert not monkey_patching.get_patch_mapping()
    assert getattr(module, class_of(model)[1].__name__) is class_of(model)[1]
    for net in (before, ours, made(model)):
        assert (type(routers(net)[0]) is class_of(model)[1]) == (net is not ours)
        assert len(net(x, output_router_logits=True).router_logits) == 2


def test_the_patch_ends_after_an_error_inside():
    from transformers import MixtralForCausalLM, monkey_patching

    from kofn.integrations.transformers import patch_routers

    def fail():
        with patch_routers("mixtral", "olmoe", verbose=False):
            made = MixtralForCausalLM(config("mixtral"))
            assert type(routers(made)[0]) is class_of("mixtral")[0]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not monkey_patching.get_patch_mapping()
    assert type(routers(MixtralForCausalLM(config("mixtral")))[0]) is class_of("mixtral")[1]


def test_the_patch_ends_after_an_error_elsewhere_in_a_model():
    from transformers.models.mixtral import modeling_mixtral

    from kofn.integrations.transformers import patch_routers, unpatch_routers

    patch_routers("mixtral", verbose=False)
    with pytest.raises(KeyError):
        made("mixtral", hidden_act="unknown")
    unpatch_routers()
    assert modeling_mixtral.MixtralTopKRouter is class_of("mixtral")[1]


def test_it_logs_what_it_patched(capsys):
    from kofn.integrations.transformers import patch_routers

    with logged("INFO") as records, patch_routers("mixtral", "gpt_oss", temperature=0.5):
        pass
    (record,) = records
    assert record.getMessage().splitlines() == [
        "kofn patches the routers of models that are loaded from now on "
        "(selection='hard', temperature=0.5):",
        "  mixtral: MixtralTopKRouter -> KofnMixtralRouter",
        "  gpt_oss: GptOssTopKRouter -> KofnGptOssRouter",
        "unpatch_routers() ends this.",
    ]
    with logged("INFO") as records, patch_routers("mixtral", verbose=False):
        pass
    assert not records
    assert not capsys.readouterr().out


def test_a_model_by_another_spelling_says_which_one_is_meant():
    from kofn.integrations.transformers import patch_routers

    with pytest.raises(ValueError, match=r"got 'Mixtral'; you may mean 'mixtral'$"):
        patch_routers("Mixtral")


def test_a_replacement_by_someone_else_is_left_alone():
    from transformers import monkey_patching

    from kofn.integrations.transformers import patch_routers, unpatch_routers

    other = type("Other", (torch.nn.Module,), {})
    monkey_patching.register_patch_mapping({"OlmoeTopKRouter": other})
    with pytest.raises(ValueError, match="OlmoeTopKRouter is already replaced by Other"):
        patch_routers("mixtral", "olmoe")
    assert monkey_patching.get_patch_mapping() == {"OlmoeTopKRouter": other}
    unpatch_routers()
    assert monkey_patching.get_patch_mapping() == {"OlmoeTopKRouter": other}
    monkey_patching.unregister_patch_mapping(["OlmoeTopKRouter"])


def test_making_a_model_asks_no_module_of_transformers_for_its_names(monkeypatch):
    """That takes a second per model, and one of them may fail."""
    from transformers import MixtralForCausalLM

    from kofn.integrations.transformers import patch_routers

    class Broken(types.ModuleType):
        def __dir__(self):
            raise RuntimeError("a module that cannot be listed")

        def __getattr__(self, name):
            raise RuntimeError(f"a module without {name}")

    monkeypatch.setitem(sys.modules, "transformers.broken", Broken("transformers.broken"))
    with patch_routers("mixtral", verbose=False):
        for net in (MixtralForCausalLM(config("mixtral")), made("mixtral")):
            assert type(routers(net)[0]) is class_of("mixtral")[0]
    assert type(routers(made("mixtral"))[0]) is class_of("mixtral")[1]


def test_one_thread_ends_while_another_makes_a_model():
    from transformers import modeling_utils

    from kofn.integrations.transformers import patch_routers, unpatch_routers

    stock_apply = modeling_utils.apply_patches
    patch_routers("mixtral", verbose=False)
    first, second = modeling_utils.apply_patches(), modeling_utils.apply_patches()
    module = inspect.getmodule(class_of("mixtral")[1])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert module.MixtralTopKRouter is class_of("mixtral")[0]
    second.__exit__(None, None, None)
    assert module.MixtralTopKRouter is class_of("mixtral")[1]
    unpatch_routers()
    assert modeling_utils.apply_patches is stock_apply


def test_a_second_patch_replaces_the_first():
    from kofn.integrations.transformers import patch_routers, unpatch_routers

    patch_routers("mixtral", verbose=False)
    patch_routers("mixtral", temperature=0.5, verbose=False)
    assert routers(made("mixtral"))[0].routing.temperature == 0.5
    unpatch_routers("mixtral")


def test_patches_may_be_nested():
    """When a block ends, the patch around it counts again, whether it is a block or not."""
    from transformers import MixtralForCausalLM

    from kofn.integrations.transformers import patch_routers, unpatch_routers

    def temperatures():
        """Of a router made by a class, and of one made by from_config."""
        plain = MixtralForCausalLM(config("mixtral"))
        nets = [routers(net)[0] for net in (plain, made("mixtral"))]
        return [getattr(net, "routing", None) and net.routing.temperature for net in nets]

    with patch_routers("mixtral", temperature=0.5, verbose=False):
        with patch_routers("mixtral", "olmoe", temperature=0.25, verbose=False):
            assert temperatures() == [0.25, 0.25]
        assert temperatures() == [0.5, 0.5]
        with pytest.raises(ValueError, match="k must be"), patch_routers("mixtral", verbose=False):
            MixtralForCausalLM(config("mixtral", num_experts_per_tok=EXPERTS + 1))
        assert temperatures() == [0.5, 0.5]
    assert temperatures() == [None, None]
    patch_routers("mixtral", temperature=0.5, verbose=False)
    with patch_routers("mixtral", temperature=0.25, verbose=False):
        assert temperatures() == [0.25, 0.25]
    assert temperatures() == [None, 0.5]
    with patch_routers("mixtral", verbose=False):
        unpatch_routers()
        assert temperatures()[1] is None
    assert temperatures() == [None, None]


def test_a_patch_that_has_ended_is_not_entered_again():
    from transformers import monkey_patching

    from kofn.integrations.transformers import patch_routers

    ended = pytest.raises(RuntimeError, match="'mixtral' is in use, has ended")
    with (patch := patch_routers("mixtral", verbose=False)), ended:
        patch.__enter__()
    with pytest.raises(RuntimeError, match="'mixtral' is in use, has ended"):
        patch.__enter__()
    assert not monkey_patching.get_patch_mapping()
