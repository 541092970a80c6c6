"""kofn's top-k in the pooling layers of PyTorch Geometric.

pool = TopKPooling(64, ratio=0.5)
pool.select = SelectSoftTopK(64, ratio=0.5)
"""

from __future__ import annotations

from typing import Any

try:
    from torch_geometric.nn.pool.select import Select, SelectOutput
except ImportError as error:
    raise ImportError(
        "kofn.integrations.torch_geometric needs PyTorch Geometric; "
        'install it with: pip install "kofn[graph]"'
    ) from error

import torch
from torch import Tensor

from kofn.arrays.checks import check_integer, check_number
from kofn.arrays.typing import LinkName
from kofn.links import Link, table
from kofn.maps.segments import segment_hard_topk, segment_soft_topk

__all__ = ["SelectSoftTopK"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


class SelectSoftTopK(Select):  # type: ignore[misc]
    """Choose the k best nodes of each graph, with a gradient for the score of every node.

    The score of a node is x·w/|w| with a learned vector w. The nodes are the hard top-k,
    and their weights are p = segment_soft_topk(scores, k), which depend on the nodes that were not
    chosen, too. PyTorch Geometric's SelectTopK multiplies by tanh of a node's own score instead.

    Args:
        in_channels: how many features a node has.
        ratio: a share of each graph's nodes in (0, 1] as a float, rounded up, or an integer
            k. 1.0 is a share, all nodes; PyTorch Geometric's function takes it for k = 1.
        link: as for `kofn.soft_topk`.
        temperature: > 0, in the units of the scores. As it goes to 0, the weights go to 1.

    Shapes:
        x: (nodes, in_channels); batch: (nodes,), the graph of each node, sorted or not.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range.

    Source: Gao & Ji, "Graph U-Nets" (2019), for pooling by a learned vector.
    """

    def __init__(
        self,
        in_channels: int,
        ratio: int | float = 0.5,
        *,
        link: LinkName | Link = "logistic",
        temperature: float = 0.1,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer("in_channels", in_channels, "an integer >= 1", 1)
        self.ratio, self.link = _checked_ratio(ratio), table.resolve(link)
        self.temperature = check_number(
            "temperature", temperature, low=0.0, strict=True, allowed="a number > 0", arrays=False
        )
        self.weight = torch.nn.Parameter(torch.empty(1, in_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a new random vector, as PyTorch Geometric does."""
        bound = self.in_channels**-0.5
        torch.nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, batch: Tensor | None = None) -> SelectOutput:
        """Return the chosen nodes, in their order, and their weights."""
        x = x.view(-1, 1) if x.dim() == 1 else x
        batch = x.new_zeros(x.shape[0], dtype=torch.long) if batch is None else batch
        scores = (x * self.weight).sum(-1) / self.weight.norm()
        of: dict[str, Any] = {"segment_ids": batch}
        of |= {"ratio" if isinstance(self.ratio, float) else "k": self.ratio}
        chosen = segment_hard_topk(scores.detach(), **of).nonzero().squeeze(-1)
        weights = segment_soft_topk(scores, link=self.link, temperature=self.temperature, **of)
        return SelectOutput(
            node_index=chosen,
            num_nodes=x.shape[0],
            cluster_index=torch.arange(len(chosen), device=x.device),
            num_clusters=len(chosen),
            weight=weights[chosen],
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.in_channels}, ratio={self.ratio}, "
            f"temperature={self.temperature:g})"
        )


def _checked_ratio(ratio: Any) -> int | float:
    if isinstance(ratio, float):
        return check_number(
            "ratio", ratio, low=0.0, high=1.0, strict=True, arrays=False,
            allowed="a share in (0, 1] or an integer >= 1",
        )  # fmt: skip
    return check_integer("ratio", ratio, "a share in (0, 1] or an integer >= 1", 1)
