"""What can be seen of a model that is being pruned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.nn.pruning.choosers import Clock, GroupChoice
from kofn.nn.pruning.targets import refuse_infinite, refuse_sharded
from kofn.nn.pruning.weight import PrunedWeight


class Views:
    """The step, the masks and the entropy of a `Pruner`; nothing here changes anything."""

    def __init__(self, choosers: list[Any], clock: Clock) -> None:
        self.choosers, self.clock = choosers, clock
        self.members: list[PrunedWeight] = [each for row in choosers for each in row.members]
        self.finalized = False

    @property
    def frozen(self) -> bool:
        """Return whether the mask is fixed."""
        return all(each.mask is not None for each in self.members)

    @property
    def steps(self) -> int:
        """Return how many steps were counted."""
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
        return {member.target.name: member.spread(mask) for member, mask in pairs}

    def entropy(self) -> dict[str, float]:
        """Return the mean entropy, in nats, of the groups of each weight; for pattern="n:m".

        Raises:
            RuntimeError: called after finalize().
            ValueError: the pattern is not n:m.
        """
        self._refuse_finalized()
        found = {}
        for row in self.choosers:
            if not isinstance(row, GroupChoice):
                raise ValueError('entropy() is that of groups; it needs pattern="n:m"')
            found[row.members[0].target.name] = float(row.entropy())
        return found

    def _chosen(self) -> list[tuple[PrunedWeight, Tensor]]:
        """Return each weight with the hard mask of its scores; it is not fixed here."""
        for member in self.members:
            name = member.target.name
            refuse_sharded(name, member.original)
            with torch.no_grad():
                refuse_infinite(f"the scores of {name}", member.score(member.original))
        return [
            pair for row in self.choosers for pair in zip(row.members, row.choose(), strict=True)
        ]

    def _refuse_finalized(self) -> None:
        if self.finalized:
            raise RuntimeError("finalize() was called before; the model has no masks any more")

    def __repr__(self) -> str:
        first = self.choosers[0]
        what = f"kept={first.kept:g} of {first.total:g}" if hasattr(first, "kept") else "n:m"
        tensors = f"{len(self.members)} weights"
        return f"Pruner({tensors}, {what}, step {self.steps} of {self.clock.schedule.steps})"
