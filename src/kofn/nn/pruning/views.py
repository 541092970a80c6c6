"""Views of a model that is being pruned."""

from __future__ import annotations

import torch
from torch import Tensor

from kofn.nn.pruning.choosers import Clock, GroupChoice, SharedRow
from kofn.nn.pruning.targets import refuse_infinite, refuse_sharded
from kofn.nn.pruning.weight import Chooser, PrunedWeight
from kofn.streaming.tensors import ALONE, Over


class Views:
    """The step, the masks and the entropy of a `Pruner`; nothing here changes anything."""

    over: Over = ALONE

    def __init__(self, choosers: list[Chooser], clock: Clock) -> None:
        self.choosers, self.clock = choosers, clock
        self.members: list[PrunedWeight] = [each for row in choosers for each in row.members]
        self.finalized = False

    @property
    def frozen(self) -> bool:
        """Return whether the mask is fixed."""
        return all(each.mask is not None for each in self.members)

    @property
    def steps(self) -> int:
        """Return the number of steps so far."""
        return int(self.clock.owner.steps)

    def masks(self) -> dict[str, Tensor]:
        """Return the hard mask of each weight, as it would be if it were fixed now.

        Raises:
            RuntimeError: called after finalize().
            ValueError: scores are NaN or infinite.
        """
        self._refuse_finalized()
        fixed = [(each, each.mask) for each in self.members if each.mask is not None]
        pairs = fixed if self.frozen else self._chosen()
        return {member.target.name: member.shown(mask) for member, mask in pairs}

    def entropy(self) -> dict[str, float]:
        """Return the mean entropy, in nats, of the groups of each weight; for pattern="n:m".

        Raises:
            RuntimeError: called after finalize().
            ValueError: the pattern is not n:m.
        """
        self._refuse_finalized()
        entropies = {}
        for row in self.choosers:
            if not isinstance(row, GroupChoice):
                raise ValueError(
                    'entropy() is the entropy of the groups of pattern="n:m"; there is no pattern'
                )
            each = row.entropy()
            total, number = self.over.sum((float(each.double().sum()), each.numel()))
            entropies[row.members[0].target.name] = total / number
        return entropies

    def _chosen(self) -> list[tuple[PrunedWeight, Tensor]]:
        """Return each weight with the hard mask of its scores; it is not fixed here."""
        for member in self.members:
            refuse_sharded(member.target.name, member.original)
        with torch.no_grad():
            scores = [each.score(each.original) for each in self.members]
        names = [f"the scores of {each.target.name}" for each in self.members]
        refuse_infinite(names, scores, self.over)
        return [
            pair for row in self.choosers for pair in zip(row.members, row.choose(), strict=True)
        ]

    def _refuse_finalized(self) -> None:
        if self.finalized:
            raise RuntimeError("finalize() was called before; the model has no masks any more")

    def __repr__(self) -> str:
        first = self.choosers[0]
        what = "n:m"
        if isinstance(first, SharedRow):
            what = f"kept={first.kept:g} of {first.total:g}"
        tensors = f"{len(self.members)} weights"
        return f"Pruner({tensors}, {what}, step {self.steps} of {self.clock.schedule.steps})"
