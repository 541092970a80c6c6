"""Mistakes of a user: every type checker refuses each line that ends with `# wrong`, and no other.

`make test-dist` checks it with mypy and basedpyright against the installed wheel; it is never run.
"""

import torch
from torch import Tensor

import kofn
from kofn import losses, metrics, nn, schedules

SCORES: Tensor = torch.zeros(2, 4)

kofn.soft_topk(SCORES, 2, link="logistics")  # wrong
kofn.soft_topk(SCORES, 2, tau=0.5)  # wrong
kofn.soft_topk(SCORES, 2, "logistic")  # wrong
kofn.soft_topk(SCORES)  # wrong
kofn.soft_topk("scores", 2)  # wrong
kofn.perturbed_argmax(SCORES, noise="linear")  # wrong
SHAPE = kofn.topk_gates(SCORES, 2).shape  # wrong
kofn.soft_top_k(SCORES, 2)  # wrong
kofn.KSubset(SCORES, 2).marginal()  # wrong
losses.topk_loss(SCORES, SCORES, reduction="average")  # wrong
metrics.hard_gap(SCORES, 2, norm="l2")  # wrong
schedules.linear(1.0, 0.1)  # wrong
nn.TopKRouter(16, 8, 2, selection="softest")  # wrong
nn.TopKSAE(16)  # wrong
