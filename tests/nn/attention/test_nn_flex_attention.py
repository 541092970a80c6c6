"""nn.sparse_flex_attention: flex_attention's outputs are sparse_attention's, and so are gradients.

PyTorch's flex_attention has no backward on a CPU. There, its outputs are tested as they are, and
gradients with a dense twin of it: the same softmax of modified scores, as plain operations.
"""

import pytest
import torch

from kofn import nn, soft_topk
from kofn.links.table import TABLE
from kofn.nn.attention import flex as flex_attention

N, HEADS, L, S, D = 2, 4, 6, 9, 4
KINDS = {
    "entmax": {},
    "softmax": dict(alpha=1.0),
    "sparsemax": dict(weights="sparsemax", temperature=0.5),
    "soft_topk": dict(weights="soft_topk", k=2, temperature=torch.tensor([[0.5], [1], [2], [3]])),
    "linear": dict(weights="soft_topk", link="linear", k=torch.tensor([[1.0], [2], [3], [1.5]])),
    "normal": dict(weights="soft_topk", link="normal", k=3.5),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def tensors(dtype=torch.float64, shared=2, **options):
    shapes = ((HEADS, L), (shared, S), (shared, S))
    return [torch.randn(N, *shape, D, dtype=dtype, **options) for shape in shapes]


def masks():
    """One row of the second item has no position, and one has a single one."""
    from torch.nn.attention.flex_attention import create_block_mask

    dense = torch.rand(N, L, S) > 0.4
    dense[1, 2:4] = False
    dense[1, 3, 5] = True
    block = create_block_mask(lambda n, h, i, j: dense[n, i, j], N, None, L, S, device="cpu")
    return block, dense[:, None]


TRIED = [(kind, dtype) for kind in KINDS for dtype in ("float32", "float64", "bfloat16")]
QUICK = [("entmax", "float32"), ("soft_topk", "float64"), ("sparsemax", "bfloat16")]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [pytest.param(*each, marks=[] if each in QUICK else pytest.mark.full) for each in TRIED],
)
def test_the_output_is_sparse_attention_s(kind, dtype):
    atol = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 0.03}[dtype]
    query, key, value = tensors(getattr(torch, dtype))
    block, dense = masks()
    for ours, theirs in ((None, None), (block, dense)):
        with torch.no_grad():
            found = nn.sparse_flex_attention(query, key, value, ours, 0.7, **KINDS[kind])
        scaled = query * 0.7  # rounded, as there; sparse_attention may scale the temperature
        wanted = nn.sparse_attention(scaled, key, value, theirs, scale=1.0, **KINDS[kind])
        assert found.dtype == query.dtype
        assert torch.allclose(found, wanted, atol=atol)
    assert (found[1, :, 2] == 0).all()


def test_the_scale_is_pytorch_s_and_so_is_a_causal_block_mask():
    from torch.nn.attention.flex_attention import create_block_mask

    query, key, value = (torch.randn(1, 2, 5, 4) for _ in range(3))
    block = create_block_mask(lambda n, h, i, j: i >= j, None, None, 5, 5, device="cpu")
    with torch.no_grad():
        found = nn.sparse_flex_attention(query, key, value, block, alpha=1.0)
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.allclose(found, wanted, atol=1e-6)


def test_pieces_of_the_first_pass_change_nothing(monkeypatch):
    query, key, value = tensors()
    block, _ = masks()
    k = torch.rand(HEADS, L) + 1
    with torch.no_grad():
        whole = nn.sparse_flex_attention(query, key, value, block, weights="soft_topk", k=k)
        monkeypatch.setattr(flex_attention, "SCORES", 4 * N * HEADS * S)
        parts = nn.sparse_flex_attention(query, key, value, block, weights="soft_topk", k=k)
    assert torch.allclose(whole, parts, atol=1e-12)


def twin(query, key, value, score_mod, block_mask):
    """What flex_attention computes, of tensors that may have gradients."""
    sizes = (*query.shape[:3], key.shape[-2])
    n, h, i, j = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    scores = score_mod(query @ key.mT, n, h, i, j)
    live = torch.ones(sizes, dtype=torch.bool)
    live = live if block_mask is None else block_mask.mask_mod(n, h, i, j)
    empty = ~live.any(-1, keepdim=True)
    weights = torch.where(live | empty, scores, -torch.inf).softmax(-1)
    return torch.where(empty, 0.0, weights) @ value


@every_kind
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_those_of_the_dense_weights(kind, masked, monkeypatch):
    monkeypatch.setattr(flex_attention, "flex", twin)
    block, dense = masks() if masked else (None, None)
    options = dict(KINDS[kind])
    inputs = tensors(requires_grad=True)
    if isinstance(options.get("temperature"), torch.Tensor):
        options["temperature"] = options["temperature"].double().requires_grad_()
        inputs.append(options["temperature"])
    found = nn.sparse_flex_attention(*inputs[:3], block, **options)
    wanted = nn.sparse_attention(*inputs[:3], dense, **options)
    assert torch.allclose(found, wanted, atol=1e-12)
    back = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(each, inputs, back) for each in (found, wanted))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-11)


@pytest.mark.parametrize("link", TABLE.values(), ids=str)
def test_the_gradient_through_the_threshold_is_f_over_its_sum(link):
    """∂(w_i/k) = (f_i ∂s_i − f_i/Σf Σ f_j ∂s_j)/k, against automatic differentiation."""
    s, k = torch.randn(7, dtype=torch.float64), 2.5
    jacobian = torch.autograd.functional.jacobian(lambda s: soft_topk(s, k, link=link) / k, s)
    theta = flex_attention.shared_threshold(s[None], k, link=link)
    f = link.pdf(s - theta)
    assert torch.allclose(jacobian, (torch.diag(f) - torch.outer(f, f) / f.sum()) / k, atol=1e-12)
    # With θ as a constant, w/Σw would give w_i/k in place of f_i/Σf.
    w = soft_topk(s, k, link=link)
    constant = (torch.diag(f) - torch.outer(w, f) / k) / k
    assert not torch.allclose(jacobian, constant, atol=1e-3)


def test_an_extreme_row_has_finite_gradients(monkeypatch):
    """One weight of 1 exactly: no f is above 0, so θ has no slope there, and none may be NaN."""
    monkeypatch.setattr(flex_attention, "flex", twin)
    query, key, value = tensors(requires_grad=True)
    found = nn.sparse_flex_attention(query, key, value, None, 50.0, weights="sparsemax")
    for gradient in torch.autograd.grad(found.square().sum(), (query, key, value)):
        assert gradient.isfinite().all()


def test_gradients_on_a_cpu_are_refused_by_name():
    query, key, value = tensors()
    with pytest.raises(RuntimeError, match=r"no gradients on a CPU.*use nn.sparse_attention"):
        nn.sparse_flex_attention(query.requires_grad_(), key, value)
    with pytest.raises(RuntimeError, match="no gradients on a CPU"):
        nn.sparse_flex_attention(query.detach(), key, value.requires_grad_())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(weights="softmax"), ValueError, "weights must be one of 'entmax'"),
        (dict(alpha=0.5), ValueError, "alpha must be .*got 0.5"),
        (dict(alpha=torch.ones(4, 1)), ValueError, "alpha must be a number.*sparse_attention has"),
        (dict(k=torch.ones(4, 1).requires_grad_()), ValueError, "tensor without a gradient"),
        (dict(weights="soft_topk", k=0), ValueError, "k must be .*got 0"),
        (dict(temperature=0.0), ValueError, "temperature must be .*got 0.0"),
        (dict(query=torch.randn(3, 6, 4)), ValueError, "query must have"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    query, key, value = tensors(torch.float32)
    usual = dict(query=query, key=key, value=value)
    with pytest.raises(error, match=message):
        nn.sparse_flex_attention(**{**usual, **arguments})


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's
def test_it_is_one_graph():
    """Traced, not translated: on a CPU, PyTorch's compiler takes no θ that it computes itself."""
    torch._dynamo.reset()
    query, key, value = tensors()
    block, _ = masks()
    compiled = torch.compile(nn.sparse_flex_attention, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        found = compiled(query, key, value, block)
        assert torch.allclose(found, nn.sparse_flex_attention(query, key, value, block))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flex_attention's backward needs CUDA")
@every_kind
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_on_cuda(kind, masked):
    from torch.nn.attention.flex_attention import create_block_mask

    shapes = ((4, 256), (2, 256), (2, 256))
    inputs = [torch.randn(N, *each, 16, device="cuda", requires_grad=True) for each in shapes]
    options = {
        name: each.cuda() if isinstance(each, torch.Tensor) else each
        for name, each in KINDS[kind].items()
    }
    block = None
    if masked:
        block = create_block_mask(lambda n, h, i, j: i >= j, None, None, 256, 256)
    found = nn.sparse_flex_attention(*inputs, block, **options)
    wanted = nn.sparse_attention(*inputs, is_causal=masked, **options)
    assert torch.allclose(found, wanted, atol=1e-2)
    back = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(each, inputs, back) for each in (found, wanted))
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() < 1e-2 * b.norm()
