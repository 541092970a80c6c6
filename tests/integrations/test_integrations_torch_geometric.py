"""Pooling layers of PyTorch Geometric with kofn's choice of nodes."""

import copy

import pytest
import torch

pytestmark = pytest.mark.extras

pool = pytest.importorskip("torch_geometric.nn.pool", reason="needs the extra graph")

from kofn import segment_soft_topk  # noqa: E402
from kofn.integrations.torch_geometric import SelectSoftTopK  # noqa: E402

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [1, 2, 0, 4, 5, 6, 3]])
BATCH = torch.tensor([0, 0, 0, 1, 1, 1, 1])


def nodes():
    return torch.randn(7, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("ratio", "kept"), [(0.5, [2, 2]), (1, [1, 1]), (9, [3, 4])])
def test_it_chooses_as_many_nodes_as_pytorch_geometric(ratio, kept):
    torch.manual_seed(0)
    layer = pool.TopKPooling(8, ratio=ratio)
    theirs = layer(nodes(), EDGES, batch=BATCH)
    layer.select = SelectSoftTopK(8, ratio=ratio)
    layer.select.weight.data.copy_(torch.randn(1, 8))
    x, edges, _, batch, chosen, weight = layer(nodes(), EDGES, batch=BATCH)
    assert torch.bincount(batch).tolist() == kept == torch.bincount(theirs[3]).tolist()
    assert x.shape == (len(chosen), 8)
    assert edges.numel() == 0 or edges.max() < len(chosen)
    assert ((weight >= 0) & (weight <= 1)).all()


def test_the_nodes_are_the_best_and_every_score_has_a_gradient():
    select = SelectSoftTopK(8, ratio=0.5, temperature=0.5)
    x = nodes().requires_grad_()
    found = select(x, BATCH)
    scores = ((x * select.weight).sum(-1) / select.weight.norm()).detach()
    theirs = pool.select.SelectTopK(8, ratio=0.5)
    theirs.weight.data.copy_(select.weight.data)
    assert set(found.node_index.tolist()) == set(theirs(x, BATCH).node_index.tolist())
    weights = segment_soft_topk(scores, ratio=0.5, segment_ids=BATCH, temperature=0.5)
    torch.testing.assert_close(found.weight, weights[found.node_index])
    (slopes,) = torch.autograd.grad((found.weight * torch.arange(1.0, 5)).sum(), x)
    assert (slopes.norm(dim=-1) > 0).all()


def test_it_is_a_module():
    select = SelectSoftTopK(8, ratio=2)
    assert repr(select) == "SelectSoftTopK(8, ratio=2, temperature=0.1)"
    again = copy.deepcopy(select)
    again.load_state_dict(select.state_dict())
    assert torch.equal(again(nodes()).node_index, select(nodes()).node_index)
    everything = SelectSoftTopK(8, ratio=1.0)(nodes(), BATCH)  # a share, unlike the integer
    assert everything.num_clusters == 7
    for arguments in ({"ratio": 0.0}, {"ratio": 0}, {"ratio": 1.5}, {"temperature": 0.0}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            SelectSoftTopK(8, **arguments)
