"""Keep three nodes of each graph: soft top-k in the conventions of PyTorch Geometric.

    python examples/graph_pooling.py     # 20 seconds

Graphs have 5 to 40 nodes, and `batch` says which graph a node is in. A few nodes of each graph
carry a mark, and the label is the sign of the sum of their values; the values of the others are
noise. A layer scores the nodes and keeps the best of each graph. `segment_soft_topk` gives a
gradient to every score; tanh of the kept nodes' own scores, the usual gate, to these alone. On this
task both learn what a mark is, and are level. `ratio=0.5` instead of k keeps half of each graph;
kofn.integrations.torch_geometric has the layer for PyTorch Geometric's own pooling.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kofn import segment_hard_topk, segment_soft_topk

FEATURES, GRAPHS, KEPT, STEPS = 8, 64, 3, 400


def graphs(rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(features of the nodes, the graph of each node, a label per graph)."""
    sizes = torch.randint(5, 41, (GRAPHS,), generator=rng)
    batch = torch.repeat_interleave(torch.arange(GRAPHS), sizes)
    x = torch.randn(len(batch), FEATURES, generator=rng)
    marked = segment_hard_topk(
        torch.rand(len(batch), generator=rng), KEPT, segment_ids=batch
    ).bool()
    x[:, 0] = marked + 0.3 * x[:, 0]
    total = torch.zeros(GRAPHS).index_add(0, batch, x[:, 1] * marked)
    return x, batch, (total > 0).long()


class Pooled(nn.Module):
    def __init__(self, soft: bool) -> None:
        super().__init__()
        self.soft, self.score = soft, nn.Linear(FEATURES, 1)
        self.encode = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU())
        self.head = nn.Linear(32, 2)

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        scores = self.score(x).squeeze(-1)
        chosen = segment_hard_topk(scores, KEPT, segment_ids=batch)
        gate = torch.tanh(scores)
        if self.soft:
            gate = segment_soft_topk(scores, KEPT, segment_ids=batch, temperature=0.3)
        kept = self.encode(x) * (gate * chosen)[:, None]
        return self.head(torch.zeros(GRAPHS, kept.shape[1]).index_add(0, batch, kept))


def accuracy(soft: bool, seed: int) -> float:
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    net = Pooled(soft)
    adam = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(STEPS):
        x, batch, labels = graphs(rng)
        adam.zero_grad()
        nn.functional.cross_entropy(net(x, batch), labels).backward()
        adam.step()
    with torch.no_grad():
        held_out = [graphs(rng) for _ in range(20)]
        right = [
            (net(x, batch).argmax(-1) == labels).float().mean() for x, batch, labels in held_out
        ]
    return torch.stack(right).mean().item()


def main() -> None:
    for name, soft in (("tanh of the chosen", False), ("segment_soft_topk", True)):
        found = torch.tensor([accuracy(soft, seed) for seed in range(3)])
        print(f"{name:20s} accuracy {found.mean():.3f} ± {found.std():.3f}", flush=True)


if __name__ == "__main__":
    main()
