"""kofn chooses k of n entries by their scores, softly, so that the choice has a gradient.

An entry with score x gets the weight F((x − θ)/T), and the threshold θ is the number for which the
weights sum to k. It works on PyTorch tensors, JAX arrays and NumPy arrays:

    >>> import numpy as np
    >>> from kofn import soft_topk
    >>> soft_topk(np.array([2.0, 1.0, 0.5, -1.0]), 2).round(3)
    array([0.793, 0.585, 0.461, 0.16 ])

Start with `soft_topk`; `topk_gates` has the indices of the chosen, too; `softmax`, `sparsemax` and
`entmax` choose one; `KSubset` is a distribution over subsets; `topk` and `quantile` find numbers
exactly; `dir(kofn)` lists all names.

`kofn.nn` has PyTorch modules, `kofn.projections` the closest points of sets of choices,
`kofn.distributed` the maps over several processes, and `kofn.streaming` the maps of rows that do
not fit into memory. Modules and names that not everybody needs are loaded at their first use.
`kofn.feature_selection`, `kofn.onnx` and the modules of `kofn.integrations` need other libraries
and are imported by their names.
"""

import typing as _typing

# The command may be interrupted while the rest is imported. In other processes this does nothing.
from kofn.commands import starting as _starting  # noqa: F401

# isort: split
from kofn import links
from kofn.arrays.when_imported import import_after as _import_after
from kofn.links import Link
from kofn.maps import gates as _gates
from kofn.maps import softmax as _softmax
from kofn.maps import topk as _topk
from kofn.maps.gates import *
from kofn.maps.softmax import *
from kofn.maps.topk import *

if _typing.TYPE_CHECKING:
    from kofn import balance as balance
    from kofn import classic as classic
    from kofn import distributed as distributed
    from kofn import estimators as estimators
    from kofn import losses as losses
    from kofn import metrics as metrics
    from kofn import nn as nn
    from kofn import projections as projections
    from kofn import schedules as schedules
    from kofn import streaming as streaming
    from kofn.distributions.bernoulli import *
    from kofn.distributions.categorical import *
    from kofn.distributions.k_subset import *
    from kofn.distributions.normal import *
    from kofn.distributions.plackett_luce import *
    from kofn.distributions.relaxed_one_hot import *
    from kofn.losses import fenchel_young_loss as fenchel_young_loss
    from kofn.maps.assignment.weights import *
    from kofn.maps.knapsack import *
    from kofn.maps.logarithms import *
    from kofn.maps.ordered.largest import topk as topk
    from kofn.maps.ordered.quantiles import *
    from kofn.maps.ordered.segments import *
    from kofn.maps.perturbed import *
    from kofn.maps.segments import *
    from kofn.maps.softmax_variants import *
    from kofn.maps.sparse_softmax import *
    from kofn.metrics.temperature import temperature_for as temperature_for

__version__ = "0.1.0"

# The operators that saved programs call, and how DTensor shards them.
_import_after("torch", "kofn.metrics.torch_temperature")
_import_after("torch.distributed.tensor", "kofn.metrics.sharded_temperature")

# `make signatures` writes the names of this table, from the files' own `__all__`.
_FILES = {
    "distributions.bernoulli": ["Bernoulli"],
    "distributions.categorical": ["Categorical", "gumbel_max", "gumbel_softmax"],
    "distributions.k_subset": ["KSubset"],
    "distributions.normal": ["Normal", "normal_rsample"],
    "distributions.plackett_luce": ["PlackettLuce"],
    "distributions.relaxed_one_hot": ["RelaxedOneHot"],
    "maps.assignment.weights": ["soft_assignment", "soft_assignment_prices"],
    "maps.knapsack": ["soft_knapsack", "soft_knapsack_threshold", "soft_knapsack_value"],
    "maps.logarithms": ["log_soft_topk", "log_entmax"],
    "maps.ordered.quantiles": ["quantile"],
    "maps.ordered.segments": ["segment_topk", "segment_quantile"],
    "maps.perturbed": ["perturbed_argmax"],
    "maps.softmax_variants": ["taylor_softmax"],
    "maps.sparse_softmax": ["sparse_softmax"],
    "maps.segments": [
        "segment_soft_topk",
        "segment_soft_topk_threshold",
        "segment_soft_topk_sum",
        "segment_softmax",
        "segment_sparse_softmax",
        "segment_sparsemax",
        "segment_entmax",
        "segment_hard_topk",
    ],
}
"""Files that are loaded when one of their names is first used."""

# Every file says its names itself, in its `__all__`.
__all__ = [
    # choosing k of n
    *_topk.__all__,
    *_gates.__all__,
    # the k largest and quantiles, exactly
    "topk",
    *_FILES["maps.ordered.quantiles"],
    # choosing within a budget
    *_FILES["maps.knapsack"],
    # choosing with two margins
    *_FILES["maps.assignment.weights"],
    # the closest point of a set of choices
    "projections",
    # choosing one
    *_softmax.__all__,
    *_FILES["maps.sparse_softmax"],
    *_FILES["maps.softmax_variants"],
    *_FILES["maps.perturbed"],
    # choosing in ragged rows
    *_FILES["maps.segments"],
    *_FILES["maps.ordered.segments"],
    # logarithms of weights
    *_FILES["maps.logarithms"],
    # distributions over choices, and learning through their samples
    *_FILES["distributions.k_subset"],
    *_FILES["distributions.plackett_luce"],
    *_FILES["distributions.categorical"],
    *_FILES["distributions.bernoulli"],
    *_FILES["distributions.normal"],
    *_FILES["distributions.relaxed_one_hot"],
    "estimators",
    # links and schedules
    "links",
    "Link",
    # training towards a choice
    "losses",
    "fenchel_young_loss",
    "schedules",
    # metrics
    "metrics",
    "temperature_for",
    # older maps, for comparison
    "classic",
]


_ROOMS = (
    "balance",
    "classic",
    "distributed",
    "estimators",
    "losses",
    "metrics",
    "nn",
    "projections",
    "schedules",
    "streaming",
)
_LATER = {name: file for file, names in _FILES.items() for name in names} | {
    "topk": "maps.ordered.largest",
    "fenchel_young_loss": "losses",
    "temperature_for": "metrics.temperature",
}
"""Names whose module is loaded when they are first used."""


if not _typing.TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> object:
        """Load most rooms and names when they are first used."""
        from importlib import import_module

        if name in _ROOMS:
            return import_module(f"kofn.{name}")
        if name in _LATER:
            loaded = getattr(import_module(f"kofn.{_LATER[name]}"), name)
            globals()[name] = loaded  # so that nobody asks again
            return loaded
        raise AttributeError(_missing(name))


_NAMES_ELSEWHERE = {
    "entmax15": "entmax(x)",
    "entmax_bisect": "entmax(x, alpha)",
    "EXACT": "losses.perturbed_accuracy_loss",
    "GradTopK": "KSubset(x, k).marginals()",
    "gumbel_topk": "PlackettLuce",
    "k_sum": "soft_topk_sum(x, k)",
    "kthvalue": "topk(x, k, largest=False)",
    "logsumexp": "soft_topk_sum(x, 1, link='exponential')",
    "margin_softmax": "losses.am_softmax",
    "masked_softmax": "softmax(x, mask=mask)",
    "median": "quantile(x, 0.5)",
    "multi_hot": "hard_topk(x, k)",
    "nanquantile": "quantile(x, q, ignore_nan=True)",
    "percentile": "quantile(x, q / 100)",
    "QB": "balance.quantile_bias",
    "quantile_balancing": "balance.quantile_bias",
    "reinforce": "estimators.score_function",
    "relaxed_topk": "soft_topk(x, k)",
    "router": "nn.TopKRouter",
    "sample_topk": "KSubset(x, k).sample()",
    "scatter_softmax": "segment_softmax(x, segment_ids=...)",
    "sinkhorn": "soft_assignment(x, k)",
    "SMART": "nn.prune",
    "soft_k_max": "classic.iterative_soft_topk",
    "sort": "topk(x, n)",
    "sparsemax_bisect": "sparsemax(x)",
    "STk": "soft_topk_sum(x, k)",
    "ThreTopK": "soft_topk(x, k)",
    "topk_mask": "hard_topk(x, k)",
    "topk_router": "nn.TopKRouter",
    "weighted_softmax": "softmax(x, weights=w)",
}
"""Names that others and the articles use, in any case, with or without underscores."""


def _missing(name: str) -> str:
    """Say that there is no such name, and which one may be meant, of a room, too."""
    from kofn.arrays.names import meant, plain

    if name.startswith("_"):
        return meant("kofn", name, {})  # before all rooms are read for nothing
    of_rooms = {own: f"{room}.{own}" for room in _ROOMS for own in _names_in(f"kofn.{room}")}
    known = of_rooms | {plain(own): place for own, place in of_rooms.items()}
    known |= {plain(own): own for own in (*__all__, *_ROOMS)}
    known |= {plain(other): own for other, own in _NAMES_ELSEWHERE.items()}
    return meant("kofn", name, known)


def _names_in(module: str) -> list[str]:
    """Return the `__all__` of a module of ours that may not be loaded, from its source."""
    import ast
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    for each in ast.parse(source).body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(each.value)
            return names
    return []


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted({*__all__, *_ROOMS, "__version__"})
