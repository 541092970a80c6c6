"""nn.SparseAttention and nn.sparse_attention at edges: empty inputs, odd masks, wrong shapes."""

import pytest
import torch

from kofn import nn

KINDS = ("entmax", "sparsemax", "soft_topk")
every_kind = pytest.mark.parametrize("kind", KINDS)
HEADS, WIDTH = 2, 8


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def attention(kind="entmax", **options):
    options = {"batch_first": True, "k": 2, "weights": kind, **options}
    return nn.SparseAttention(WIDTH, HEADS, **options)


@every_kind
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 5), (2, 0, 5), (2, 3, 0), (2, 3, 1)])
def test_there_may_be_nothing_or_one_position(kind, batch, queries, keys):
    query, key = torch.randn(batch, HEADS, queries, 4), torch.randn(batch, HEADS, keys, 4)
    query.requires_grad_()
    output, weights = nn.sparse_attention(query, key, key, weights=kind, k=2, need_weights=True)
    assert output.shape == query.shape
    assert weights.shape == (batch, HEADS, queries, keys)
    if keys == 1:
        assert torch.equal(weights, torch.ones_like(weights))
        assert torch.equal(output, key.expand_as(output))
    if keys == 0:
        assert (output == 0).all()
    else:
        output.sum().backward()
        assert (query.grad == 0).all()


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_of_another_half_type_deletes(kind, dtype):
    """The least number of float16 is an ordinary one in the other types."""
    net, x = attention(kind, dtype=dtype), torch.randn(1, 4, WIDTH).to(dtype)
    ignored = torch.zeros(4, 4, dtype=torch.bool)
    ignored[0], ignored[1, 0] = True, True
    least = torch.zeros(4, 4, dtype=torch.float16).masked_fill(ignored, -65504)
    padding = torch.zeros(1, 4, dtype=torch.bool)
    output, weights = net(x, x, x, attn_mask=least, key_padding_mask=padding)
    wanted = net(x, x, x, attn_mask=ignored)
    assert torch.equal(output, wanted[0])
    assert torch.equal(weights, wanted[1])
    assert (weights[0, 0] == 0).all()


@pytest.mark.parametrize("mask", [torch.ones(5, 2, 3, 3), torch.ones(2, 4), torch.ones(4, 3) > 0])
def test_a_mask_does_not_enlarge_the_batch(mask):
    states = [torch.randn(1, HEADS, 3, 4)] * 3
    with pytest.raises(ValueError, match=r"attn_mask has shape .* it must broadcast to the scores"):
        nn.sparse_attention(*states, mask)


@pytest.mark.parametrize("training", [True, False])
def test_whole_encoders_and_decoders_of_pytorch_take_it(training):
    encoder = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 16, 0.0, batch_first=True)
    encoder.self_attn = attention()
    encoder = torch.nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False)
    decoder = torch.nn.TransformerDecoderLayer(WIDTH, HEADS, 16, 0.0, batch_first=True)
    decoder.self_attn, decoder.multihead_attn = attention(), attention()
    decoder = torch.nn.TransformerDecoder(decoder, 2).train(training)
    x, padding = torch.randn(2, 5, WIDTH), torch.arange(5) >= torch.tensor([[5], [3]])
    causal = torch.ones(5, 5).triu(1) > 0
    memory = encoder.train(training)(x, mask=causal, src_key_padding_mask=padding)
    changed = x.clone()
    changed[1, 3:] += 1.0  # padding
    again = encoder(changed, mask=causal, src_key_padding_mask=padding)
    assert torch.equal(again[~padding], memory[~padding])
    output = decoder(x, memory, tgt_mask=causal, tgt_is_causal=True)
    changed = x.clone()
    changed[:, 3:] += 1.0  # later positions
    again = decoder(changed, memory, tgt_mask=causal, tgt_is_causal=True)
    assert torch.equal(again[:, :3], output[:, :3])


def test_an_encoder_of_pytorch_asks_no_more_of_it():
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True)
    layer.self_attn = attention()
    with pytest.warns(UserWarning, match="enable_nested_tensor"):
        torch.nn.TransformerEncoder(layer, 1)


def test_compiled_code_for_all_lengths_is_one_graph():
    torch._dynamo.reset()
    net = attention()
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend="eager")
    for length in (5, 7):
        x = torch.randn(2, length, WIDTH)
        assert torch.allclose(compiled(x, x, x)[0], net(x, x, x)[0], atol=1e-6)


def test_beams_may_reorder_a_cache():
    net, x, cache = attention(), torch.randn(3, 4, WIDTH), nn.KeyValueCache()
    order = torch.tensor([2, 0, 0])
    first, rest = x[:, :2], x[order, 2:]
    net(first, first, first, is_causal=True, cache=cache)
    cache.key, cache.value = cache.key[order], cache.value[order]
    found = net(rest, rest, rest, is_causal=True, cache=cache)[0]
    whole = net(x[order], x[order], x[order], is_causal=True)[0]
    assert torch.allclose(found, whole[:, 2:], atol=1e-6)


@pytest.mark.parametrize(
    "numbers",
    [
        dict(weights="soft_topk", k=[2, 3]),
        dict(weights="entmax", alpha=[1.2, 1.7], learned=("alpha", "temperature")),
    ],
)
def test_numbers_start_where_they_are_told_after_a_device_without_memory(numbers):
    net = nn.SparseAttention(WIDTH, HEADS, device="meta", **numbers).to_empty(device="cpu")
    with torch.no_grad():
        for each in (*net.parameters(), *net.buffers()):
            each.fill_(torch.nan)  # as new memory may be
    net.reset_parameters()
    wanted = nn.SparseAttention(WIDTH, HEADS, **numbers)
    for found, expected in zip(net.heads.children(), wanted.heads.children(), strict=True):
        assert torch.equal(torch.as_tensor(found()), torch.as_tensor(expected()))
    assert all(each.isfinite().all() for each in net.parameters())


def test_weights_that_are_not_needed_are_not_computed(monkeypatch):
    net, x = attention("soft_topk"), torch.randn(2, 4, WIDTH)
    output = net(x, x, x)[0]
    made = []
    mean = torch.Tensor.mean
    monkeypatch.setattr(torch.Tensor, "mean", lambda *a, **k: made.append(1) or mean(*a, **k))
    found = net(x, x, x, need_weights=False)
    assert torch.equal(found[0], output)
    assert found[1] is None
    assert not made


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(num_key_value_heads=0), ValueError, "must be a divisor of num_heads .*got 0"),
        (dict(kdim=0), ValueError, "kdim must be an integer ≥ 1; got 0"),
        (dict(vdim=1.5), TypeError, "vdim must be an integer ≥ 1; got 1.5"),
        (dict(bias="no"), TypeError, "bias must be True or False; got 'no'"),
        (dict(batch_first=1), TypeError, "batch_first must be True or False; got 1"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        nn.SparseAttention(**{**dict(embed_dim=WIDTH, num_heads=HEADS), **arguments})


@pytest.mark.parametrize(
    ("scale", "error"), [("a", TypeError), (torch.nan, ValueError), (-torch.inf, ValueError)]
)
def test_a_wrong_scale_is_named(scale, error):
    states = [torch.randn(1, HEADS, 3, 4)] * 3
    with pytest.raises(error, match=f"scale must be None or a finite number; got '?{scale}"):
        nn.sparse_attention(*states, scale=scale)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(1, 2, 4, 8)] * 3, r"query must have three .* 8 features; got \(1, 2, 4, 8\)"),
        ([(1, 4, 6)] * 3, r"query must have .* got \(1, 4, 6\)"),
        ([(1, 4, 8), (4, 8), (1, 4, 8)], r"key must have .* got \(4, 8\)"),
        ([(1, 4, 8), (1, 4, 8), (1, 4, 4)], r"value must have .* got \(1, 4, 4\)"),
    ],
)
def test_wrong_shapes_are_named(shapes, message):
    with pytest.raises(ValueError, match=message):
        attention()(*(torch.randn(shape) for shape in shapes))


def test_scores_of_float16_do_not_overflow_before_their_scale():
    """Elsewhere the temperature is divided by the scale instead."""
    states = [torch.full((1, 1, 4, 64), 40.0, dtype=torch.float16) for _ in range(3)]
    assert nn.sparse_attention(*states).tolist() == states[2].tolist()
    wide = [state.float() for state in states]
    with torch.autocast("cpu", dtype=torch.float16):
        assert bool(nn.sparse_attention(*wide).isfinite().all())


@pytest.mark.parametrize("scale", [0.3, -0.3, 0.0])
@pytest.mark.parametrize("weights", ["entmax", "soft_topk"])
def test_a_scale_is_that_of_the_queries(scale, weights):
    query, key, value = (torch.randn(2, 2, 9, 4, dtype=torch.float64) for _ in range(3))
    found = nn.sparse_attention(query, key, value, scale=scale, temperature=0.7, weights=weights)
    how = dict(scale=1.0, temperature=0.7, weights=weights)
    wanted = nn.sparse_attention(scale * query, key, value, **how)
    torch.testing.assert_close(found, wanted)
    with pytest.raises(ValueError, match=r"temperature.* got -2\.0"):
        nn.sparse_attention(query, key, value, scale=scale, temperature=-2.0, weights=weights)


def test_tensors_of_one_dtype():
    query = torch.randn(1, HEADS, 3, 4)
    with pytest.raises(TypeError, match=r"same dtype; got query .*32, key .*64, value .*32"):
        nn.sparse_attention(query, query.double(), query)
    with torch.autocast("cpu", torch.bfloat16):
        output = nn.sparse_attention(query, query.bfloat16(), query)
    assert output.dtype == torch.bfloat16
