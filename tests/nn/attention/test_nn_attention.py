"""nn.sparse_attention and nn.SparseAttention: shapes and masks of PyTorch, weights of kofn."""

import copy
import pickle

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kofn import entmax, nn, soft_topk, sparsemax

N, HEADS, L, D = 2, 4, 6, 4
KINDS = {
    "entmax": {},
    "sparsemax": dict(weights="sparsemax"),
    "soft_topk": dict(weights="soft_topk", k=2, temperature=0.5),
    "hard": dict(weights="soft_topk", k=2, hard=True, link="laplace"),
    "learned": dict(weights="soft_topk", k=[1.5, 2, 3, 4], learned=("k", "temperature")),
    "alpha": dict(learned=["alpha"], num_key_value_heads=2),
    "per head": dict(alpha=[1.0, 1.3, 1.5, 2.0]),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def heads(positions=L, count=HEADS, features=D):
    return torch.randn(N, count, positions, features)


def attention(kind="entmax", **changes):
    return nn.SparseAttention(HEADS * D, HEADS, **{"batch_first": True, **KINDS[kind], **changes})


# With alpha = 1 the weights are a softmax, and everything else must be PyTorch's.


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_the_function_is_pytorch_s_at_alpha_1(shared):
    query, key, value = heads(5), heads(7, shared), heads(7, shared, 3)
    boolean = torch.rand(N, 1, 5, 7) > 0.4
    boolean[..., 0] = True
    least = torch.finfo(torch.float32).min
    additive = torch.randn(HEADS, 5, 7).masked_fill(~boolean[0], least)
    for mask in (None, boolean, additive):
        found = nn.sparse_attention(query, key, value, mask, scale=0.3, alpha=1.0)
        wanted = scaled_dot_product_attention(query, key, value, mask, scale=0.3, enable_gqa=True)
        assert torch.allclose(found, wanted, atol=1e-6)
    key, value = key[..., :5, :], value[..., :5, :]
    found = nn.sparse_attention(query, key, value, is_causal=True, alpha=1.0)
    wanted = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    assert torch.allclose(found, wanted, atol=1e-6)


def multihead_twin(ours, batch_first):
    theirs = torch.nn.MultiheadAttention(HEADS * D, HEADS, batch_first=batch_first)
    parts = (ours.q_proj, ours.k_proj, ours.v_proj)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj = ours.out_proj
    return theirs


@pytest.mark.parametrize("layout", ["batch first", "batch second", "one sequence"])
def test_the_module_is_pytorch_s_at_alpha_1(layout):
    """True is ignored in both of its masks, which is the other way round in the function."""
    ours = attention(alpha=1.0, batch_first=layout == "batch first")
    theirs = multihead_twin(ours, ours.batch_first)
    shape = {"batch first": (N, L), "batch second": (L, N), "one sequence": (L,)}[layout]
    query, key, value = (torch.randn(*shape, HEADS * D) for _ in range(3))
    padding = torch.rand(*([N, L] if len(shape) == 2 else [L])) > 0.7
    padding[..., 0] = False
    many = N * HEADS if len(shape) == 2 else HEADS
    masks = [torch.ones(L, L, dtype=torch.bool).triu(1), torch.rand(many, L, L) > 0.7]
    masks[1][..., 0] = False
    for attn_mask in (*masks, torch.randn(L, L)):
        for key_padding_mask in (None, padding):
            if key_padding_mask is not None and attn_mask.is_floating_point():
                key_padding_mask = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
            options = dict(attn_mask=attn_mask, key_padding_mask=key_padding_mask)
            for average in (True, False):
                options["average_attn_weights"] = average
                found, wanted = (
                    ours(query, key, value, **options),
                    theirs(query, key, value, **options),
                )
                for a, b in zip(found, wanted, strict=True):
                    assert a.shape == b.shape
                    assert torch.allclose(a, b, atol=1e-6)
    assert ours(query, key, value, need_weights=False)[1] is None


@pytest.mark.parametrize("bias", [True, False])
def test_keys_and_values_may_have_another_width(bias):
    sizes = dict(kdim=5, vdim=7, bias=bias, batch_first=True)
    ours = nn.SparseAttention(HEADS * D, HEADS, alpha=1.0, **sizes)
    theirs = torch.nn.MultiheadAttention(HEADS * D, HEADS, **sizes)
    with torch.no_grad():
        for name in "qkv":
            getattr(theirs, f"{name}_proj_weight").copy_(getattr(ours, f"{name}_proj").weight)
    theirs.out_proj = ours.out_proj
    inputs = torch.randn(N, 3, HEADS * D), torch.randn(N, L, 5), torch.randn(N, L, 7)
    for found, wanted in zip(ours(*inputs), theirs(*inputs), strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)
    assert any(name.endswith("bias") for name in ours.state_dict()) == bias


def test_numbers_per_head_are_those_of_the_heads():
    """In the order of the queries' heads, of which two share a head of keys."""
    alone = [attention("alpha", alpha=alpha, learned=()) for alpha in KINDS["per head"]["alpha"]]
    net, x = attention("per head", num_key_value_heads=2), torch.randn(N, L, HEADS * D)
    found = net(x, x, x, average_attn_weights=False)[1]
    for head, other in enumerate(alone):
        other.load_state_dict(net.state_dict())
        wanted = other(x, x, x, average_attn_weights=False)[1]
        assert torch.allclose(found[:, head], wanted[:, head], atol=1e-6)


def test_a_boolean_and_an_additive_mask_may_be_joined():
    net, x = attention(), torch.randn(N, L, HEADS * D)
    padding = torch.arange(L) >= torch.tensor([[4], [6]])
    additive = torch.zeros(L, L).masked_fill(torch.ones(L, L).triu(1) > 0, -torch.inf)
    joined = net(x, x, x, key_padding_mask=padding, attn_mask=additive)[1]
    causal = net(x, x, x, key_padding_mask=padding, is_causal=True)[1]
    assert torch.equal(joined, causal)
    assert (joined[0, :, 4:] == 0).all()


def test_the_weights_are_those_of_the_maps():
    query, key, value = heads(), heads(), heads()
    scores = query @ key.mT / D**0.5
    temperature = torch.tensor([[0.5], [1.0], [2.0], [4.0]])
    alpha = torch.tensor([[1.0], [1.3], [1.5], [2.0]])
    for kind, wanted in (
        (dict(alpha=1.3), entmax(scores, 1.3, temperature=temperature)),
        (dict(alpha=alpha), entmax(scores, alpha, temperature=temperature)),
        (dict(weights="sparsemax"), sparsemax(scores, temperature=temperature)),
        (dict(weights="soft_topk", k=2), soft_topk(scores, 2, temperature=temperature) / 2),
    ):
        output, weights = nn.sparse_attention(
            query, key, value, temperature=temperature, need_weights=True, **kind
        )
        assert torch.allclose(weights, wanted, atol=1e-6)
        assert torch.allclose(output, wanted @ value, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("k", [2, 3.5, 100])
def test_rows_with_few_positions_sum_to_1_and_still_learn(k, dtype):
    """k is at most half of what is live: with all of it, the weights would be uniform."""
    query, key = heads().to(dtype).requires_grad_(), heads().to(dtype)
    _, weights = nn.sparse_attention(
        query, key, key, is_causal=True, weights="soft_topk", k=k, need_weights=True
    )
    assert torch.allclose(weights.sum(-1).float(), torch.ones(N, HEADS, L), atol=1e-2)
    if dtype == torch.float32:
        assert torch.allclose(weights.sum(-1), torch.ones(N, HEADS, L), atol=1e-6)
        live = torch.arange(1, L + 1)
        few = (live / 2).clamp(min=1, max=k)
        scores = (query @ key.mT / D**0.5).detach()
        mask = torch.ones(L, L).tril() > 0
        assert torch.allclose(weights, soft_topk(scores, few, mask=mask) / few[:, None], atol=1e-6)
    (grad,) = torch.autograd.grad((weights * torch.randn_like(weights)).sum(), query)
    assert (grad[:, :, 1:].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("hard", [False, True])
def test_without_a_mask_k_is_at_most_half_of_the_positions_too(hard):
    query, key, options = heads(), heads(7), dict(weights="soft_topk", hard=hard)
    wanted = nn.sparse_attention(query, key, key, k=3 if hard else 3.5, **options)
    for mask in (None, torch.ones(L, 7) > 0):  # k is 8 by default
        assert torch.allclose(nn.sparse_attention(query, key, key, mask, **options), wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["entmax", "soft_topk"])
def test_a_mask_of_least_numbers_deletes_in_half_types(kind, dtype):
    query, key, value = (heads().to(dtype) for _ in range(3))
    live = torch.rand(N, 1, L, L) > 0.4
    live[0, 0, 0] = False
    options = {"weights": kind, "k": 2}
    least = torch.zeros(N, 1, L, L, dtype=dtype).masked_fill(~live, torch.finfo(dtype).min)
    found = nn.sparse_attention(query, key, value, least, **options)
    assert found.dtype == dtype
    assert torch.equal(found, nn.sparse_attention(query, key, value, live, **options))
    wide = [each.float() for each in (query, key, value)]
    wanted = nn.sparse_attention(*wide, live, **options)
    assert torch.allclose(found.float(), wanted, atol=0.05)


def test_many_weights_of_float16_do_not_overflow():
    value = torch.full((1, 1, 4000, 1), 100.0, dtype=torch.float16)
    found = nn.sparse_attention(value[:, :, :1] * 0, value, value, weights="soft_topk", k=2000)
    assert abs(found.item() - 100) < 1


def test_hard_weights_are_shared_equally():
    query, key = heads(), heads()
    _, weights = nn.sparse_attention(
        query, key, key, is_causal=True, weights="soft_topk", k=2, hard=True, need_weights=True
    )
    few = (torch.arange(1, L + 1) // 2).clamp(min=1, max=2)
    assert torch.equal((weights > 0).sum(-1), few.expand(N, HEADS, L))
    assert torch.allclose(weights.amax(-1), 1 / few)


@every_kind
def test_rows_that_are_all_masked_are_zeros_with_no_gradient(kind):
    net, x = attention(kind), torch.randn(N, L, HEADS * D, requires_grad=True)
    padding = torch.tensor([[False] * L, [True] * L])
    output, weights = net(x, x, x, key_padding_mask=padding)
    assert (weights[1] == 0).all()
    assert torch.equal(output[1], net.out_proj.bias.expand(L, -1))
    (grad,) = torch.autograd.grad(output.square().sum(), x)
    assert (grad[1] == 0).all()
    assert grad.isfinite().all()


@every_kind
def test_every_parameter_learns(kind):
    net, x = attention(kind), torch.randn(N, L, HEADS * D)
    target = torch.randn(N, L, HEADS * D)
    (net(x, x, x)[0] - target).square().sum().backward()
    # Adding the same to all keys of a query changes no weight.
    assert {n for n, p in net.named_parameters() if not (p.grad.abs() > 1e-5).any()} <= {
        "k_proj.bias"
    }


def test_learned_numbers_start_where_they_are_told_and_stay_in_range():
    net = attention("learned")
    assert torch.allclose(net.heads.k()[:, 0], torch.tensor([1.5, 2, 3, 4]))
    assert torch.allclose(net.heads.temperature()[:, 0], torch.ones(HEADS))
    alpha = attention("alpha").heads.alpha
    assert torch.allclose(alpha()[:, 0], torch.full((HEADS,), 1.5))
    for raw in (-1e3, 1e3):
        alpha.raw.data.fill_(raw)
        assert ((alpha() >= 1) & (alpha() <= 2)).all()


@every_kind
@pytest.mark.parametrize("step", [1, 2])
def test_a_cache_gives_what_all_at_once_gives(kind, step):
    net, x = attention(kind).eval(), torch.randn(N, L, HEADS * D)
    cache = nn.KeyValueCache()
    found = [net(part, part, part, is_causal=True, cache=cache)[0] for part in x.split(step, dim=1)]
    assert len(cache) == L
    assert torch.allclose(torch.cat(found, 1), net(x, x, x, is_causal=True)[0], atol=1e-6)


def test_dropout_is_for_training_and_keeps_the_mean():
    net, x = attention(dropout=0.5), torch.randn(N, L, HEADS * D)
    assert not torch.equal(net(x, x, x)[0], net(x, x, x)[0])
    assert torch.equal(net(x, x, x)[1], net(x, x, x)[1])  # the weights before dropout
    net.eval()
    assert torch.equal(net(x, x, x)[0], net(x, x, x)[0])
    query = torch.zeros(1, 1, 1, 4)
    key = value = torch.ones(1, 1, 1000, 4)
    output = nn.sparse_attention(query, key, value, dropout_p=0.5, alpha=1.0)
    assert abs(output.mean() - 1) < 0.1


def test_a_transformer_layer_does_not_replace_it_by_its_softmax():
    layer = torch.nn.TransformerEncoderLayer(HEADS * D, HEADS, 32, dropout=0.0, batch_first=True)
    layer.self_attn = attention()
    x = torch.randn(N, L, HEADS * D)
    trained = layer(x)
    with torch.no_grad():
        assert torch.allclose(layer.eval()(x), trained, atol=1e-6)


@every_kind
def test_copies_and_saved_modules_are_the_same(kind):
    net, x = attention(kind).eval(), torch.randn(N, L, HEADS * D)
    loaded = attention(kind).eval()
    loaded.load_state_dict(net.state_dict(), strict=True)
    for other in (loaded, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other(x, x, x)[0], net(x, x, x)[0])
        assert repr(other) == repr(net)


def test_the_repr_says_what_it_is():
    shown = repr(attention("learned", num_key_value_heads=2, dropout=0.1))
    assert "16, 4, num_key_value_heads=2, dropout=0.1, batch_first=True" in shown
    assert "'soft_topk', link='logistic'" in shown
    assert "(k): PerHead(one learned per head)" in shown
    assert "(alpha): PerHead(1.5)" in repr(attention())


@every_kind
def test_autocast_computes_as_pytorch_does(kind):
    net, x = attention(kind), torch.randn(N, L, HEADS * D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, weights = net(x, x, x)
    assert output.dtype == weights.dtype == torch.bfloat16
    assert torch.allclose(output.float(), net(x, x, x)[0], atol=0.1)
    output.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize(
    "kind", [k if k == "entmax" else pytest.param(k, marks=pytest.mark.full) for k in KINDS]
)
def test_it_compiles_as_one_graph(kind):
    torch._dynamo.reset()
    net, x = attention(kind), torch.randn(N, L, HEADS * D)
    twin = copy.deepcopy(net)
    options = dict(key_padding_mask=torch.arange(L) >= torch.tensor([[4], [6]]), is_causal=True)
    found = torch.compile(net, fullgraph=True, backend="aot_eager")(x, x, x, **options)[0]
    wanted = twin(x, x, x, **options)[0]
    assert torch.allclose(found, wanted, atol=1e-6)
    back = torch.randn_like(found)
    (found * back).sum().backward(), (wanted * back).sum().backward()
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-4)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@every_kind
def test_an_exported_module_is_right_for_other_batches(kind):
    net, x = attention(kind).eval(), torch.randn(N, L, HEADS * D)
    batch = {0: torch.export.Dim("batch", min=2)}
    program = torch.export.export(net, (x, x, x), dynamic_shapes=(batch,) * 3).module()
    x = torch.randn(5, L, HEADS * D)
    assert torch.allclose(program(x, x, x)[0], net(x, x, x)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(embed_dim=0), ValueError, "embed_dim must be an integer ≥ 1; got 0"),
        (
            dict(num_heads=3),
            ValueError,
            r"num_heads must be a divisor of embed_dim \(here 16\).*got 3",
        ),
        (dict(num_key_value_heads=3), ValueError, "must be a divisor of num_heads .*got 3"),
        (dict(dropout=1.0), ValueError, r"dropout must be a number in \[0, 1\); got 1.0"),
        (dict(weights="softmax"), ValueError, "weights must be one of 'entmax', .*'softmax'"),
        (dict(hard=True), ValueError, "hard is for weights='soft_topk'; .* 'entmax'"),
        (
            dict(alpha=0.5),
            ValueError,
            "alpha must be a finite number ≥ 1, or one per head; got 0.5",
        ),
        (dict(alpha=[1.5, 2.0]), ValueError, r"alpha must be .* one per head \(here 4\); got 2 "),
        (dict(weights="soft_topk", k=0), ValueError, "k must be a finite number > 0.*got 0"),
        (dict(temperature="warm"), TypeError, "temperature must be .*got 'warm'"),
        (dict(learned=("k",)), ValueError, r"learned must be .*'alpha', 'temperature'.*'k'"),
        (dict(learned="alpha"), ValueError, "learned must be a sequence of names"),
        (
            dict(alpha=2.0, learned=("alpha",)),
            ValueError,
            "alpha must be between 1 and 2 .*got 2.0",
        ),
        (dict(link="cauchy"), ValueError, "link must be a kofn.Link or one of"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        nn.SparseAttention(**{**dict(embed_dim=16, num_heads=4), **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(query=torch.randn(6, 4)), ValueError, "query must have shape .*heads.*got"),
        (dict(key=heads(7)), ValueError, "key and value the same heads and positions"),
        (dict(query=heads(count=3)), ValueError, "query must have .* multiple of its heads"),
        (dict(attn_mask=torch.ones(6, 6).long()), TypeError, "attn_mask must be boolean.*int64"),
        (dict(dropout_p=1.0), ValueError, r"dropout_p must be a number in \[0, 1\)"),
        (dict(weights="soft"), ValueError, "weights must be one of"),
        (dict(weights="soft_topk", k=0), ValueError, "k must be a finite number > 0.*got 0"),
        (dict(alpha=0.5), ValueError, "alpha must be .*got 0.5"),
        (dict(temperature=-1.0), ValueError, "temperature must be .*got -1.0"),
    ],
)
def test_wrong_arguments_of_the_function_are_named(arguments, error, message):
    usual = dict(query=heads(), key=heads(), value=heads())
    with pytest.raises(error, match=message):
        nn.sparse_attention(**{**usual, **arguments})


def test_wrong_masks_of_the_module_are_named():
    net, x = attention(), torch.randn(N, L, HEADS * D)
    with pytest.raises(
        ValueError, match=r"key_padding_mask must have shape \(2, 6\).*got \(1, 6\)"
    ):
        net(x, x, x, key_padding_mask=torch.ones(L, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"key_padding_mask must be boolean.*torch.int64"):
        net(x, x, x, key_padding_mask=torch.ones(N, L).long())
    with pytest.raises(ValueError, match=r"attn_mask must have shape \(6, 6\) or \(8, 6, 6\)"):
        net(x, x, x, attn_mask=torch.ones(L, 5) > 0)
