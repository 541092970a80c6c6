"""register_attention: a tiny Llama and GPT-2 of transformers compute with kofn's attention."""

import pytest
import torch

from kofn import nn

transformers = pytest.importorskip("transformers")

from kofn.integrations.transformers import (  # noqa: E402
    attention,
    register_attention,
    unregister_attention,
)

pytestmark = pytest.mark.extras

N, L, WORDS = 2, 7, 19
KINDS = {
    "entmax": {},
    "sparsemax": dict(weights="sparsemax", temperature=0.5),
    "soft_topk": dict(weights="soft_topk", k=2),
    "hard": dict(weights="soft_topk", k=2, hard=True),
    "per head": dict(alpha=torch.tensor([[1.0], [1.3], [1.5], [2.0]])),
}
MODELS = ("llama", "gpt2")
every_kind = pytest.mark.parametrize("kind", KINDS)
every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def kind():
    return "entmax"


@pytest.fixture(autouse=True)
def registered(kind):
    register_attention("sparse", **KINDS[kind])
    yield
    if "sparse" in attention._registered:
        unregister_attention("sparse")


def tiny(name, how="sparse", **changes):
    """A model with random weights; Llama has two query heads per key head."""
    shared = dict(vocab_size=WORDS, attn_implementation=how, pad_token_id=0, eos_token_id=None)
    if name == "gpt2":
        sizes = dict(n_embd=16, n_layer=2, n_head=4, n_positions=32, bos_token_id=None)
        dropped = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        config = transformers.GPT2Config(**{**shared, **sizes, **dropped, **changes})
        model = transformers.GPT2LMHeadModel(config)
    else:
        sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2)
        heads = dict(num_attention_heads=4, num_key_value_heads=2, bos_token_id=None)
        config = transformers.LlamaConfig(**{**shared, **sizes, **heads, **changes})
        model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():  # so large that attention matters
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def tokens(n=N, length=L):
    return torch.randint(1, WORDS, (n, length))


@every_model
@pytest.mark.parametrize("padded", [False, True])
def test_at_alpha_1_it_is_the_model_s_own_attention(name, padded):
    """Softmax is entmax with alpha = 1: masks, scale and grouped heads must be transformers'."""
    register_attention("sparse", alpha=1.0)
    scales = dict(scale_attn_by_inverse_layer_idx=True) if name == "gpt2" else {}
    model, ids = tiny(name, **scales), tokens()
    mask = torch.ones_like(ids)
    mask[0, :3] = 1 - padded
    found = model(ids, attention_mask=mask).logits
    model.set_attn_implementation("eager")
    wanted = model(ids, attention_mask=mask).logits
    assert torch.allclose(found[mask > 0], wanted[mask > 0], atol=1e-5)


@every_model
@every_kind
def test_it_trains_every_parameter(name, kind):
    model, ids = tiny(name).train(), tokens(4, 12)
    model(ids, labels=ids).loss.backward()
    still = {n for n, p in model.named_parameters() if not (p.grad.abs() > 1e-7).any()}
    assert still == set()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@every_model
@every_kind
def test_a_later_token_changes_nothing_before_it(name, kind):
    model, ids = tiny(name), tokens()
    changed = ids.clone()
    changed[:, 4] = (ids[:, 4] + 1) % WORDS
    found, other = model(ids).logits, model(changed).logits
    assert torch.equal(found[:, :4], other[:, :4])
    assert not torch.allclose(found[:, 5:], other[:, 5:], atol=1e-3)


@every_model
@every_kind
def test_left_padding_changes_nothing(name, kind):
    model, ids = tiny(name), tokens(1)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], dim=1)
    mask = (torch.arange(L + 3) >= 3).long()[None]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    found = model(padded, attention_mask=mask, position_ids=positions).logits
    assert found.isfinite().all()
    assert torch.allclose(found[:, 3:], model(ids).logits, atol=1e-4)


@every_model
@every_kind
def test_generation_with_a_cache_is_generation_without(name, kind):
    """Two prompts, one of them padded on the left."""
    model, ids = tiny(name), tokens(N, 5)
    mask = torch.ones_like(ids)
    ids[0, :2] = mask[0, :2] = 0
    how = dict(attention_mask=mask, max_new_tokens=6, do_sample=False, output_scores=True)
    how |= dict(return_dict_in_generate=True)
    cached = model.generate(ids, use_cache=True, **how)
    plain = model.generate(ids, use_cache=False, **how)
    assert torch.equal(cached.sequences, plain.sequences)
    for a, b in zip(cached.scores, plain.scores, strict=True):
        assert torch.allclose(a, b, atol=1e-4)
    alone = model.generate(ids[:1, 2:], use_cache=True, max_new_tokens=6, do_sample=False)
    assert torch.equal(alone[0], cached.sequences[0, 2:])


@every_model
def test_a_static_cache_has_positions_that_are_not_filled(name):
    model, ids = tiny(name), tokens(1, 5)
    wanted = model(ids).logits
    cache = transformers.StaticCache(config=model.config, max_cache_len=9)
    first = model(ids[:, :3], past_key_values=cache).logits
    rest = [model(ids[:, i : i + 1], past_key_values=cache).logits for i in (3, 4)]
    assert torch.allclose(torch.cat([first, *rest], 1), wanted, atol=1e-5)


@every_model
@every_kind
def test_bfloat16(name, kind):
    model, ids = tiny(name), tokens()
    wanted = model(ids).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = model(ids).logits
    found = model.to(torch.bfloat16)(ids, labels=ids)
    assert found.logits.dtype == torch.bfloat16
    for logits in (inside, found.logits):
        away = (logits - wanted).abs() / wanted.abs().mean()
        # A hard choice may change with a rounding; most do not.
        assert (away.median() if kind == "hard" else away.mean()) < 0.1
    found.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@every_model
@pytest.mark.parametrize("kind", ["entmax", "soft_topk"])
def test_it_compiles_as_one_graph(name, kind):
    torch._dynamo.reset()
    model, ids = tiny(name), tokens()
    ids[0, 0] = 0
    mask = (ids > 0).long()  # logits alone: transformers' loss of GPT-2 logs, which breaks a graph
    wanted = model(ids, attention_mask=mask, use_cache=False).logits
    gradients = torch.autograd.grad(wanted.square().mean(), list(model.parameters()))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = compiled(ids, attention_mask=mask, use_cache=False).logits
    assert torch.allclose(found, wanted, atol=1e-5)
    found.square().mean().backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-4)


def test_gradient_checkpointing_and_a_saved_model(tmp_path):
    model, ids = tiny("llama").train(), tokens()
    wanted = model(ids, labels=ids).loss
    gradients = torch.autograd.grad(wanted, list(model.parameters()))
    model.activation_checkpointing_enable()
    model(ids, labels=ids).loss.backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)
    model.save_pretrained(tmp_path)
    load = transformers.LlamaForCausalLM.from_pretrained
    loaded = load(tmp_path, attn_implementation="sparse").eval()
    assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)


@pytest.mark.parametrize("kind", ["entmax", "soft_topk"])
def test_the_weights_are_sparse_attention_s(kind):
    """The recorded weights of a layer, against the function on that layer's own tensors."""
    model, ids, seen = tiny("llama"), tokens(), []
    inner = transformers.AttentionInterface._global_mapping["sparse"]

    def spy(module, *tensors, **options):
        seen.append((tensors, options))
        return inner(module, *tensors, **options)

    transformers.AttentionInterface.register("sparse", spy)
    recorded = model(ids, output_attentions=True).attentions
    assert len(recorded) == 2
    for weights, ((query, key, value, _), options) in zip(recorded, seen, strict=True):
        assert query.shape[1] == 2 * key.shape[1]
        wanted = nn.sparse_attention(
            query, key, value, None, 0.0, True, options["scaling"], need_weights=True, **KINDS[kind]
        )[1]
        assert torch.allclose(weights, wanted, atol=1e-6)
        assert torch.allclose(weights.sum(-1), torch.ones(N, 4, L), atol=1e-5)


def test_packed_sequences_do_not_see_each_other():
    model, ids = tiny("llama"), tokens(1, 6)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    found = model(ids, position_ids=positions, use_cache=False).logits
    assert torch.allclose(found[:, 3:], model(ids[:, 3:], use_cache=False).logits, atol=1e-5)


def test_a_sliding_window():
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, vocab_size=WORDS)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, sliding_window=3)
    config = transformers.MistralConfig(**sizes, **heads, attn_implementation="sparse")
    model, ids = transformers.MistralForCausalLM(config).eval(), tokens(1)
    (weights,) = model(ids, output_attentions=True).attentions
    seen = torch.ones(L, L).tril() - torch.ones(L, L).tril(-3)
    assert (weights[0, :, seen == 0] == 0).all()
    assert (weights[0, :, seen > 0] > 0).all()


def test_an_encoder_sees_both_sides_and_takes_dropout():
    sizes = dict(vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=4)
    config = transformers.BertConfig(
        **sizes, intermediate_size=24, attn_implementation="sparse", hidden_dropout_prob=0.0
    )
    model, ids = transformers.BertModel(config).eval(), tokens(1)
    (weights,) = model(ids, output_attentions=True).attentions
    assert (weights > 0).all()
    first = model(ids).last_hidden_state
    assert torch.equal(first, model(ids).last_hidden_state)
    model.train()
    assert not torch.equal(first, model(ids).last_hidden_state)


def test_a_position_bias_is_added_to_the_scores():
    """T5 gives it beside a mask; no mask of its own holds the scores."""
    query, key, value = (torch.randn(1, 4, 3, 2) for _ in range(3))
    bias = torch.randn(1, 4, 3, 3)
    mask = torch.ones(3, 3).tril()[None, None] > 0
    attend = transformers.AttentionInterface._global_mapping["sparse"]
    module = torch.nn.Module()
    wanted = nn.sparse_attention(query, key, value, bias, is_causal=True).transpose(1, 2)
    floats = torch.zeros(1, 1, 3, 3).masked_fill(~mask, torch.finfo(torch.float32).min)
    for given in (mask, floats):
        found = attend(module, query, key, value, given, position_bias=bias)[0]
        assert torch.allclose(found, wanted, atol=1e-6)
    wanted = nn.sparse_attention(query, key, value, bias).transpose(1, 2)
    assert torch.equal(attend(module, query, key, value, None, position_bias=bias)[0], wanted)


def test_a_module_without_a_mask_says_whether_it_is_causal():
    query, key = torch.randn(1, 4, 3, 2), torch.randn(1, 4, 5, 2)
    attend = transformers.AttentionInterface._global_mapping["sparse"]
    module = torch.nn.Module()
    module.is_causal = True
    for rows in (1, 3):
        wanted = nn.sparse_attention(query[:, :, :rows], key, key, is_causal=True)
        found = attend(module, query[:, :, :rows], key, key, None)[0]
        assert torch.equal(found, wanted.transpose(1, 2))
    free = nn.sparse_attention(query, key, key).transpose(1, 2)
    assert torch.equal(attend(module, query, key, key, None, is_causal=False)[0], free)
    module.is_causal = False
    assert torch.equal(attend(module, query, key, key, None)[0], free)


def test_alpha_may_be_learned():
    alpha = torch.full((4, 1), 1.5, requires_grad=True)
    register_attention("sparse", alpha=alpha)
    model, ids = tiny("gpt2"), tokens()
    model(ids, labels=ids).loss.backward()
    assert alpha.grad.abs().min() > 0


def test_names_come_and_go():
    model, ids = tiny("gpt2"), tokens()
    soft = model(ids).logits
    register_attention("sparse", weights="sparsemax", temperature=0.1)
    assert not torch.allclose(model(ids).logits, soft, atol=1e-3)
    register_attention("other")
    unregister_attention("sparse")
    for interface in (transformers.AttentionInterface, transformers.AttentionMaskInterface):
        assert "sparse" not in interface._global_mapping
        assert "other" in interface._global_mapping
    with pytest.raises(KeyError, match="sparse"):
        model(ids)
    unregister_attention("other")
    with pytest.raises(ValueError, match=r"name must be one of \[\]; got 'other'"):
        unregister_attention("other")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(name=3), TypeError, "name must be a word.*got 3"),
        (dict(name="kofn/entmax"), ValueError, "name must be a word, without / .*'kofn/entmax'"),
        (dict(name=""), ValueError, "name must be a word"),
        (dict(name="sdpa"), ValueError, "name must not be .* already knows; got 'sdpa'"),
        (dict(name="eager"), ValueError, "name must not be .* already knows; got 'eager'"),
        (dict(weights="softmax"), ValueError, "weights must be one of 'entmax', .*'softmax'"),
        (dict(alpha=0.5), ValueError, "alpha must be .*got 0.5"),
        (dict(temperature=0), ValueError, "temperature must be .*got 0"),
        (dict(weights="soft_topk", k=-1), ValueError, "k must be .*got -1"),
        (dict(hard=True), ValueError, "hard is for weights='soft_topk'"),
    ],
)
def test_wrong_arguments_are_named_and_register_nothing(arguments, error, message):
    before = set(transformers.AttentionInterface._global_mapping)
    with pytest.raises(error, match=message):
        register_attention(**{"name": "new", **arguments})
    assert set(transformers.AttentionInterface._global_mapping) == before


def test_a_model_that_needs_more_is_refused():
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, vocab_size=WORDS)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=4)
    config = transformers.Gemma2Config(**sizes, **heads, attn_implementation="sparse")
    with pytest.raises(ValueError, match="has no soft capping of the scores"):
        transformers.Gemma2ForCausalLM(config)(tokens())


@pytest.mark.parametrize("what", ["softcap", "s_aux", "sinks", "indices", "block_indices", "cache"])
def test_what_would_be_left_out_is_refused(what):
    attend = transformers.AttentionInterface._global_mapping["sparse"]
    states = [torch.zeros(1, 2, 3, 4)] * 3
    with pytest.raises(ValueError, match=f"kofn's attention has no .*; got {what}"):
        attend(torch.nn.Module(), *states, None, **{what: torch.zeros(1)})


def test_a_model_with_an_indexer_is_refused():
    """It makes a mask of the indexer's choice for PyTorch's attention alone."""
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, vocab_size=WORDS)
    heads = dict(num_attention_heads=4, num_key_value_heads=4, q_lora_rank=8, kv_lora_rank=8)
    parts = dict(qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=4, head_dim=4)
    index = dict(index_topk=2, index_head_dim=8, index_n_heads=2, first_k_dense_replace=1)
    config = transformers.DeepseekV32Config(
        **sizes, **heads, **parts, **index, attn_implementation="sparse"
    )
    with pytest.raises(ValueError, match="has no positions that an indexer has chosen"):
        transformers.DeepseekV32ForCausalLM(config)(tokens())
