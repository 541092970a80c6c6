"""Ways to prune while training: kofn's, and contenders written from their papers."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from kofn import hard_topk, soft_topk
from kofn.nn import PruningSchedule, prune

SCORES = 20
"""The rate of learned scores, in rates of the weights."""
EVERY = 20
"""Steps between two masks of gradual pruning."""
WARM, TUNE = 0.2, 0.2
"""Spartan's shares of the training: for the number to fall, and for a fixed mask at the end."""


def pruned_names(model: nn.Module, groups: bool) -> list[str]:
    """Return the weights that are pruned; for 2:4, those whose rows consist of fours."""
    return [
        name
        for name, weight in model.named_parameters()
        if name.endswith("weight") and not (groups and weight[0].numel() % 4)
    ]


class Way:
    """Dense training; the base of all others.

    A step trains with `weights(step)` in the place of the parameters of the same names.
    """

    logits: Any = None
    """What is learned beside the parameters."""

    def __init__(self, model: nn.Module, removed: float | None, steps: int) -> None:
        self.model, self.removed, self.steps = model, removed, steps
        self.groups = removed is None
        self.names = pruned_names(model, self.groups)
        self.total = sum(each.numel() for each in self.pruned())
        self.kept = self.total - round((removed or 0.0) * self.total)
        self.memory: dict[str, Tensor] = {}
        """What a run must remember beside the parameters."""
        self.start()

    def start(self) -> None:
        """Prepare what the way adds to the model."""

    def pruned(self) -> list[Tensor]:
        """Return the parameters to prune."""
        return [self.model.get_parameter(name) for name in self.names]

    def parameters(self, rate: float) -> list[dict[str, Any]]:
        """Return the groups of the optimizer."""
        return [{"params": list(self.model.parameters()), "lr": rate}]

    def weights(self, step: int) -> dict[str, Tensor]:
        """Return the weights to train with."""
        return {}

    def after(self, step: int) -> None:
        """Go on after a step of the optimizer."""

    @torch.no_grad()
    def finish(self) -> None:
        """Leave a model with zeros."""
        for name, weight in self.weights(self.steps).items():
            self.model.get_parameter(name).copy_(weight)

    def row(self) -> Tensor:
        """Return the parameters to prune as one row, or as groups of four."""
        row = torch.cat([each.flatten() for each in self.pruned()])
        return row.view(-1, 4) if self.groups else row

    def named(self, row: Tensor) -> dict[str, Tensor]:
        """Return what `row` took apart again, by name."""
        weights = self.pruned()
        parts = torch.split(row.flatten(), [each.numel() for each in weights])
        shaped = [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
        return dict(zip(self.names, shaped, strict=True))

    def largest(self, row: Tensor, kept: int) -> Tensor:
        """Return the hard mask of the largest: `kept` of all, or two of each four."""
        return hard_topk(row.detach(), 2 if self.groups else kept)


class Kofn(Way):
    """nn.prune as it comes."""

    choice = "soft_topk"

    def start(self) -> None:
        fours = {"pattern": "2:4", "choice": self.choice}
        rest: dict[str, Any] = fours if self.groups else {"amount": self.removed}
        every = {name for name, weight in self.model.named_parameters() if weight.ndim > 1}
        exclude = sorted(every - set(self.names))
        self.pruner = prune(
            self.model, schedule=PruningSchedule(self.steps), exclude=exclude, **rest
        )

    def parameters(self, rate: float) -> list[dict[str, Any]]:
        others = {"params": self.pruner.other_parameters(), "lr": rate}
        return [others, self.pruner.score_parameters(SCORES * rate)]

    def after(self, step: int) -> None:
        self.pruner.step()

    def finish(self) -> None:
        self.pruner.finalize()


class KofnSubsets(Kofn):
    """nn.prune with exact marginals of subsets."""

    choice = "k_subset"


class ButLast(Way):
    """nn.prune of all layers but the last, which gives the answer, at a cost per weight of 1.

    So single weights, blocks and channels are removed for the same number of weights.
    """

    pattern: str | tuple[int, int] | None = None
    by_weights = True

    def start(self) -> None:
        last = [name for name in self.names if name.endswith("weight")][-1]
        self.pruner = prune(
            self.model,
            self.removed,
            schedule=PruningSchedule(self.steps),
            exclude=last,
            pattern=self.pattern,
            costs=one_each if self.by_weights else None,
        )

    parameters, after = Kofn.parameters, Kofn.after

    def finish(self) -> None:
        self.pruner.finalize(take_out=self.pattern == "channel")


class Blocks(ButLast):
    """Blocks of four rows and one column."""

    pattern = (4, 1)


class Channels(ButLast):
    """Output channels, which are taken out in the end."""

    pattern = "channel"


class NumberedChannels(Channels):
    """The same by one k over channels, of which a share is removed: each costs 1."""

    by_weights = False


def one_each(name: str, module: nn.Module) -> float:
    """Return the cost of a weight."""
    return 1.0


class Magnitude(Way):
    """The largest weights: chosen once, after half of the training, or gradually.

    Gradually: every 20 steps the smallest become 0 and stay 0, by the cubic schedule of Zhu & Gupta
    (2017), until three quarters of the training.
    """

    gradual = False

    def start(self) -> None:
        self.memory["mask"] = torch.ones_like(self.row().detach())

    def weights(self, step: int) -> dict[str, Tensor]:
        weights = self.row()
        half = self.steps // 2 // EVERY * EVERY
        if step in (half, self.steps) or (self.gradual and step % EVERY == 0):
            share = max(0.0, 1 - step / (0.75 * self.steps)) ** 3 if self.gradual else 0.0
            still = max(self.kept, round(self.total * share))
            self.memory["mask"] = self.largest((weights * self.memory["mask"]).abs(), still)
        return self.named(weights * self.memory["mask"])


class Gradual(Magnitude):
    """See `Magnitude`."""

    gradual = True


class StraightThrough(Way):
    """The largest weights of every step; all weights get the gradient of the masked ones."""

    def weights(self, step: int) -> dict[str, Tensor]:
        weights = self.row()
        masked = weights * self.largest(weights.abs(), self.kept)
        return self.named(weights + (masked - weights).detach())


class Spartan(Way):
    """Soft top-k masks of the magnitudes, hard in the forward pass (Tai et al. 2022).

    The number kept falls in the first 20 % of the training, the sharpness 1/T of the mask grows
    from 1 to 20 until the last 20 %, in which the mask is fixed. Magnitudes are divided by their
    mean. The soft mask is exact; the paper approximates the same one by Sinkhorn's iteration.
    """

    def weights(self, step: int) -> dict[str, Tensor]:
        weights = self.row()
        if "mask" in self.memory:
            return self.named(weights * self.memory["mask"])
        fallen = min(1.0, step / (WARM * self.steps))
        kept = round(self.total + fallen * (self.kept - self.total))
        sharpness = 1 + 19 * min(1.0, step / ((1 - TUNE) * self.steps))
        scores = weights.abs() / weights.detach().abs().mean()
        soft = weights * soft_topk(scores, min(kept, self.total), temperature=1 / sharpness)
        mask = self.largest(soft.abs(), kept)
        if step >= (1 - TUNE) * self.steps:
            self.memory["mask"] = mask
        return self.named(soft + (soft * mask - soft).detach())


class Gumbel(Way):
    """A learned distribution over the six masks of each group of four, as in MaskLLM.

    Samples are relaxed by Gumbel noise, at a temperature from 4 to 0.05 with logits scaled by 100
    to 500, both linear in the step. Logits start at the magnitudes that a mask keeps.
    """

    def start(self) -> None:
        pairs = list(itertools.combinations(range(4), 2))
        self.masks = torch.tensor([[float(i in pair) for i in range(4)] for pair in pairs])
        start = self.row().detach().abs() @ self.masks.T
        self.logits = (0.01 * start / start.std()).requires_grad_()

    def parameters(self, rate: float) -> list[dict[str, Any]]:
        return [*super().parameters(rate), {"params": [self.logits], "lr": rate}]

    def weights(self, step: int) -> dict[str, Tensor]:
        weights, done = self.row(), step / self.steps
        if step >= self.steps:
            mask = self.masks[self.logits.argmax(-1)]
        else:
            logits = self.logits * (100 + 400 * done)
            mask = functional.gumbel_softmax(logits, 4 - 3.95 * done) @ self.masks
        return self.named(weights * mask)


class Method(NamedTuple):
    """A way to prune."""

    make: Callable[[nn.Module, float | None, int], Way]
    colour: str
    free: bool = True
    """Whether it removes any share of the weights."""
    groups: bool = True
    """Whether it keeps two of four."""


METHODS = {
    "dense": Method(Way, "#333333", free=False, groups=False),
    "kofn": Method(Kofn, "#0072B2"),
    "kofn-subsets": Method(KofnSubsets, "#56B4E9", free=False),
    "gradual": Method(Gradual, "#D55E00", groups=False),
    "magnitude": Method(Magnitude, "#E69F00"),
    "spartan": Method(Spartan, "#009E73", groups=False),
    "straight-through": Method(StraightThrough, "#CC79A7"),
    "gumbel": Method(Gumbel, "#999999", free=False),
    "single": Method(ButLast, "#0072B2", groups=False),
    "blocks": Method(Blocks, "#009E73", groups=False),
    "channels": Method(Channels, "#D55E00", groups=False),
    "channels-k": Method(NumberedChannels, "#E69F00", groups=False),
}
