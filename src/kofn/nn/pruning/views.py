"""What can be seen of a model that is being pruned."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kofn.nn.pruning.choosers import Clock, GroupChoice
from kofn.nn.pruning.targets import refuse_sharded
from kofn.nn.pruning.weight import Chooser, PrunedWeight


class Views:
    """The step, the masks and the entropy of a `Pruner`; nothing here changes anything."""

    def __init__(self, choosers: list[Any], clock: Clock) -> None:
        self.choosers, self.clock = choosers, clock
        self.members: list[PrunedWeight] = [each for row in choosers for each in row.members]

    @property
    def frozen(self) -> bool:
        """Return whether the mask is fixed."""
        return all(each.mask is not None for each in self.members)

    @property
    def steps(self) -> int:
        """Return how many steps were counted."""
        return int(self.clock.owner.steps)

    def masks(self) -> dict[str, Tensor]:
        """Return the hard mask of each weight, as it would be if it were fixed now."""
        found = {}
        for row in self.choosers:
            chosen = self._chosen(row) if not self.frozen else [each.mask for each in row.members]
            for member, mask in zip(row.members, chosen, strict=True):
                found[member.target.name] = member.spread(mask)
        return found

    def entropy(self) -> dict[str, float]:
        """Return the mean entropy, in nats, of the groups of each weight; for pattern="n:m".

        Raises:
            ValueError: the pattern is not n:m.
        """
        found = {}
        for row in self.choosers:
            if not isinstance(row, GroupChoice):
                raise ValueError('entropy() is that of groups; it needs pattern="n:m"')
            found[row.members[0].target.name] = float(row.entropy())
        return found

    def _chosen(self, row: Chooser) -> list[Tensor]:
        for member in self.members:
            refuse_sharded(member.target.name, member.original)
        return row.choose()

    def __repr__(self) -> str:
        first = self.choosers[0]
        what = f"kept={first.kept:g} of {first.total:g}" if hasattr(first, "kept") else "n:m"
        tensors = f"{len(self.members)} weights"
        return f"Pruner({tensors}, {what}, step {self.steps} of {self.clock.schedule.steps})"
