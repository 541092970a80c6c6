"""The check that the optimizer has the scores, and that its steps are counted."""

from __future__ import annotations

import warnings

import torch

from kofn.nn.pruning.weight import PrunedWeight


class ScoreCheck:
    """Raise at the first step of an optimizer that lacks learned scores.

    The parameters of an optimizer at hand are compared. Otherwise, weights that have changed since
    the last forward pass while scores have not give it away; if neither has, as after a step that
    a gradient scaler left out, the next step decides.
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
        if optimizer is not None and not hasattr(optimizer, "param_groups"):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer; got {optimizer!r}")
        if self.done:
            return
        if optimizer is not None:
            held = {id(each) for group in optimizer.param_groups for each in group["params"]}
            lost = [each for each in self.members if id(each.scores) not in held]
            self.done = True
        else:
            pairs = list(zip(self.seen, self._versions(), strict=True))
            ran = any(before[0] != now[0] for before, now in pairs)
            same = [before[1] == now[1] for before, now in pairs]
            lost = [each for each, equal in zip(self.members, same, strict=True) if equal and ran]
            self.done = ran or not all(same)
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


class StepCheck:
    """Warn once if weights change again and again before the first call of pruner.step().

    The first change may be a state that is loaded. Only forward passes before that call are seen.
    """

    def __init__(self, members: list[PrunedWeight]) -> None:
        self.members = members
        self.done = False
        self.changes = 0
        self.seen = self._versions()

    def begin(self) -> None:
        """Look at the weights before a forward pass in training."""
        if self.done:
            return
        now = self._versions()
        self.changes += now != self.seen
        self.seen = now
        if self.changes > 1:
            self.done = True
            warnings.warn(
                "the weights have changed twice and pruner.step() was not called; call it after "
                "each optimizer.step(), or the masks stay soft and nothing is pruned before "
                "finalize()",
                stacklevel=2,
            )

    def _versions(self) -> list[int]:
        return [each.version for each in self.members]
