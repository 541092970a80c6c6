"""Whether the optimizer has the scores."""

from __future__ import annotations

import torch

from kofn.nn.pruning.weight import PrunedWeight


class ScoreCheck:
    """Raise at the first step of an optimizer that lacks learned scores.

    An optimizer at hand is asked for its parameters. Otherwise, weights that have changed since the
    last forward pass while scores have not give it away; if neither has, as after a step that a
    gradient scaler left out, the next step is looked at.
    """

    def __init__(self, members: list[PrunedWeight]) -> None:
        self.members = members
        self.done = not any(each.scores is not None for each in members)
        self.seen = self._versions()

    def begin(self) -> None:
        """Remember the present weights and scores, before a forward pass."""
        if not self.done:
            self.seen = self._versions()

    def __call__(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Check after a step of the optimizer; RuntimeError names a weight without its scores."""
        if self.done:
            return
        if optimizer is not None:
            held = {id(each) for group in optimizer.param_groups for each in group["params"]}
            lost = [each for each in self.members if id(each.scores) not in held]
            self.done = True
        else:
            pairs = list(zip(self.seen, self._versions(), strict=True))
            moved = any(before[0] != now[0] for before, now in pairs)
            still = [before[1] == now[1] for before, now in pairs]
            lost = [each for each, same in zip(self.members, still, strict=True) if same and moved]
            self.done = moved or not all(still)
        if lost:
            raise RuntimeError(
                f"the optimizer does not have the scores of {lost[0].target.name}; give it "
                "pruner.score_parameters(), and call pruner.step() after optimizer.step()"
            )

    def _versions(self) -> list[tuple[int, int]]:
        return [
            (each.version, 0 if each.scores is None else each.scores._version)
            for each in self.members
        ]
