"""weights="taylor": features give what taylor_softmax of all scores gives, in linear time."""

import pytest
import torch

from kofn import nn, taylor_softmax
from kofn.nn.attention import function
from kofn.nn.attention.taylor import CHUNK, is_linear, taylor_attention
from support import each_compiler

SHAPES = {  # of positions of queries and keys
    "one chunk": (40, 40),
    "three chunks": (2 * CHUNK + 9, 2 * CHUNK + 9),
    "a cache": (CHUNK + 3, 2 * CHUNK),
    "more queries": (CHUNK + 5, 50),
}


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def drawn(shape, dtype=torch.float64, heads=(4, 4), features=3):
    rows, columns = SHAPES[shape]
    sizes = ((heads[0], rows, features), (heads[1], columns, features), (heads[1], columns, 5))
    return [torch.randn(2, *size, dtype=dtype).requires_grad_() for size in sizes]


def by_scores(query, key, value, mask=None, is_causal=False, temperature=1.0):
    """The definition: all scores, and taylor_softmax of each row."""
    groups = query.shape[-3] // key.shape[-3]
    key, value = (each.repeat_interleave(groups, -3) for each in (key, value))
    scores = query @ key.mT / query.shape[-1] ** 0.5
    rows, columns = scores.shape[-2:]
    live = torch.ones(rows, columns, dtype=torch.bool)
    live = live.tril(columns - rows) if is_causal else live
    live = live if mask is None else live & mask
    return taylor_softmax(scores, temperature=temperature, mask=live) @ value


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=["own", "shared"])
@pytest.mark.parametrize("shape", SHAPES)
def test_features_give_what_scores_give_with_all_gradients(shape, heads, is_causal):
    inputs = drawn(shape, heads=heads)
    assert is_linear(*inputs[:2])
    temperature = (0.5 + torch.rand(4, 1, dtype=torch.float64)).requires_grad_()
    mask = (torch.rand(2, 1, 1, inputs[1].shape[-2]) > 0.3) if shape != "one chunk" else None
    how = dict(is_causal=is_causal, temperature=temperature)
    found = nn.sparse_attention(*inputs, mask, weights="taylor", **how)
    wanted = by_scores(
        *inputs, mask, **how | {"temperature": temperature.expand(4, inputs[0].shape[-2])}
    )
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)
    back = torch.randn_like(found)
    learned = (*inputs, temperature)
    slopes, exact = (torch.autograd.grad(each, learned, back) for each in (found, wanted))
    for one, other in zip(slopes, exact, strict=True):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_other_dtypes_are_exact_to_their_rounding(dtype, close, is_causal):
    inputs = [each.detach().to(dtype) for each in drawn("three chunks", features=8)]
    found = nn.sparse_attention(*inputs, weights="taylor", is_causal=is_causal)
    assert found.dtype == dtype
    wanted = by_scores(*(each.double() for each in inputs), is_causal=is_causal)
    assert (found.double() - wanted).abs().max() < close


def test_autocast_computes_features_in_float32():
    inputs = [each.detach().float() for each in drawn("three chunks", features=8)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = nn.sparse_attention(*inputs, weights="taylor")
    assert (found.double() - by_scores(*(each.double() for each in inputs))).abs().max() < 2e-5


def test_second_derivatives_are_those_of_the_scores(monkeypatch):
    monkeypatch.setattr(function, "is_linear", lambda query, key: True)
    inputs = [torch.randn(1, 2, 3, 2, dtype=torch.float64).requires_grad_() for _ in range(3)]
    for is_causal in (False, True):
        assert torch.autograd.gradgradcheck(
            lambda *each, how=is_causal: nn.sparse_attention(
                *each, None, 0.0, how, weights="taylor"
            ),
            inputs,
        )


def test_what_needs_all_scores_has_them():
    query, key, value = (each.detach() for each in drawn("one chunk"))
    linear = nn.sparse_attention(query, key, value, weights="taylor")
    dense, weights = nn.sparse_attention(query, key, value, weights="taylor", need_weights=True)
    assert torch.allclose(dense, linear, atol=1e-12)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 4, 40, dtype=torch.float64))
    each = torch.rand(4, 40, 40) > 0.3
    added = torch.randn(40, 40, dtype=torch.float64).masked_fill(~each[0], -torch.inf)
    found = nn.sparse_attention(query, key, value, each, weights="taylor")
    assert torch.allclose(found, by_scores(query, key, value, each), atol=1e-12)
    found = nn.sparse_attention(query, key, value, added, weights="taylor")
    scores = query @ key.mT / 3**0.5 + added
    assert torch.allclose(found, taylor_softmax(scores) @ value, atol=1e-12)
    shared = nn.sparse_attention(query, key[:, :2], value[:, :2], each[:, :1], weights="taylor")
    assert torch.allclose(shared, by_scores(query, key[:, :2], value[:, :2], each[:, :1]))


@pytest.mark.parametrize("is_causal", [False, True])
def test_masked_keys_do_not_count_whatever_they_are_and_none_is_zeros(is_causal):
    query, key, value = (each.detach() for each in drawn("one chunk"))
    live = torch.rand(40) > 0.5
    live[0] = True
    clean = nn.sparse_attention(query, key, value, live, 0.0, is_causal, weights="taylor")
    for each in (key, value):
        each[..., ~live, :] = torch.nan
    found = nn.sparse_attention(query, key, value, live, 0.0, is_causal, weights="taylor")
    assert torch.equal(found, clean)
    none = torch.zeros(2, 1, 1, 40, dtype=torch.bool)
    none[0] = True
    found = nn.sparse_attention(query, key, value, none & live, weights="taylor")
    assert not found[1].any()
    assert found[0].isfinite().all()
    with pytest.raises(ValueError, match=r"attn_mask has shape .* must broadcast"):
        nn.sparse_attention(query, key, value, torch.ones(3, 1, 40) > 0, weights="taylor")


def test_the_module_takes_either_way_and_caches():
    attention = nn.SparseAttention(
        8, 4, weights="taylor", learned=("temperature",), batch_first=True
    )
    x = torch.randn(2, 60, 8)
    padding = torch.zeros(2, 60, dtype=torch.bool)
    padding[1, 40:] = True
    output, weights = attention(x, x, x, padding, is_causal=True)
    linear, none = attention(x, x, x, padding, need_weights=False, is_causal=True)
    assert none is None
    assert torch.allclose(linear, output, atol=1e-5)
    assert weights.shape == (2, 60, 60)
    linear.sum().backward()
    assert attention.heads.temperature.raw.grad.abs().min() > 0
    cache = nn.KeyValueCache()
    parts = [attention(part, part, part, is_causal=True, cache=cache)[0] for part in x.split(20, 1)]
    whole, _ = attention(x, x, x, need_weights=False, is_causal=True)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)


@each_compiler
def test_it_compiles_as_one_graph(backend):
    torch._dynamo.reset()
    inputs = [each.detach().float() for each in drawn("three chunks")]

    def causal(*each):
        return nn.sparse_attention(*each, weights="taylor", is_causal=True)

    compiled = torch.compile(causal, fullgraph=True, backend=backend)
    assert torch.allclose(compiled(*inputs), causal(*inputs), atol=1e-5)


def test_short_sequences_take_scores():
    assert not is_linear(torch.zeros(100, 16), torch.zeros(100, 16))
    assert is_linear(torch.zeros(500, 16), torch.zeros(500, 16))
    assert not is_linear(torch.zeros(1, 16), torch.zeros(5000, 16))  # decoding
    query, key, value = (each.detach() for each in drawn("one chunk"))
    found = taylor_attention(query / 3**0.5, key, value, None, False, 1)
    assert torch.allclose(found, by_scores(query, key, value), atol=1e-12)


def test_what_flex_attention_does_not_have_is_refused_by_name():
    with pytest.raises(ValueError, match=r"weights must be one of .*; got 'taylor'"):
        nn.sparse_flex_attention(*torch.randn(3, 1, 2, 4, 3), weights="taylor")
    with pytest.raises(ValueError, match=r"learned must be .*; got \['alpha'\]"):
        nn.SparseAttention(8, 2, weights="taylor", learned=["alpha"])
    with pytest.raises(ValueError, match="hard is for"):
        nn.sparse_attention(*torch.randn(3, 1, 2, 4, 3), weights="taylor", hard=True)
    with pytest.raises(ValueError, match="temperature must be"):
        nn.sparse_attention(*torch.randn(3, 1, 2, 40, 2), weights="taylor", temperature=0.0)
