"""PyTorch modules over kofn's maps: routers, sparse attention, sparse autoencoders, and pruning.

Import it as `from kofn import nn` or use `kofn.nn`; `import kofn` alone does not load PyTorch.
"""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        'kofn.nn needs PyTorch; install it with: pip install "kofn[torch]". JAX and NumPy arrays '
        "have the functions of kofn, which its modules call: docs/guides shows them"
    ) from error

from kofn.arrays.keywords_of_classes import answer_for_keywords
from kofn.arrays.names import answer_for_others
from kofn.nn.attention.attention import SparseAttention
from kofn.nn.attention.flex import sparse_flex_attention
from kofn.nn.attention.function import sparse_attention
from kofn.nn.attention.key_value_cache import KeyValueCache
from kofn.nn.autoencoders.losses import auxk_loss
from kofn.nn.autoencoders.sae import SAEOutput, TopKSAE
from kofn.nn.choice import SoftTopK
from kofn.nn.pruning.prune import prune
from kofn.nn.pruning.pruner import Pruner
from kofn.nn.pruning.schedule import PruningSchedule
from kofn.nn.pruning.semi_structured import check_semi_structured
from kofn.nn.routing.base import step_routers
from kofn.nn.routing.dispatch import DispatchPlan, dispatch_plan
from kofn.nn.routing.losses import load_balancing_loss, router_z_loss
from kofn.nn.routing.replay import RoutingRecord, record_routing, replay_routing
from kofn.nn.routing.router import TopKRouter

__all__ = [
    # mixtures of experts
    "TopKRouter",
    "step_routers",
    "record_routing",
    "RoutingRecord",
    "replay_routing",
    "load_balancing_loss",
    "router_z_loss",
    "dispatch_plan",
    "DispatchPlan",
    # a choice that a model learns
    "SoftTopK",
    # attention
    "SparseAttention",
    "sparse_attention",
    "sparse_flex_attention",
    "KeyValueCache",
    # pruning
    "prune",
    "Pruner",
    "PruningSchedule",
    "check_semi_structured",
    # sparse autoencoders
    "TopKSAE",
    "SAEOutput",
    "auxk_loss",
]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(
    __name__, __all__, router="TopKRouter", moe="TopKRouter", topk="SoftTopK", sae="TopKSAE"
)
answer_for_keywords(TopKRouter, SoftTopK, SparseAttention, TopKSAE)
