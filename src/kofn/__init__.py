"""kofn: k-of-n choices that learn. Everything public, in reading order."""

from kofn import estimators, links, schedules
from kofn.bernoulli import Bernoulli
from kofn.categorical import Categorical, gumbel_max, gumbel_softmax
from kofn.links import Link
from kofn.losses import fenchel_young_loss
from kofn.maps import (
    entmax,
    hard_topk,
    soft_topk,
    soft_topk_sum,
    soft_topk_threshold,
    softmax,
    sparsemax,
    topk_gates,
)
from kofn.normal import Normal, normal_rsample
from kofn.plackett_luce import PlackettLuce
from kofn.relaxed import RelaxedOneHot
from kofn.subset import KSubset

__version__ = "0.1.0"

__all__ = [
    # choosing k of n
    "soft_topk",
    "soft_topk_threshold",
    "soft_topk_sum",
    "topk_gates",
    "hard_topk",
    # choosing one
    "softmax",
    "sparsemax",
    "entmax",
    # distributions over choices
    "KSubset",
    "PlackettLuce",
    "Categorical",
    "Bernoulli",
    "Normal",
    "RelaxedOneHot",
    # samples, and learning through them
    "gumbel_max",
    "gumbel_softmax",
    "normal_rsample",
    "estimators",
    # what they are made of
    "links",
    "Link",
    # training towards a choice
    "fenchel_young_loss",
    "schedules",
]
