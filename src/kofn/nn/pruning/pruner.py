"""The handle of a model that is being pruned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from kofn.nn.pruning.choosers import Clock, GroupChoice
from kofn.nn.pruning.targets import refuse_sharded
from kofn.nn.pruning.weight import Chooser, PrunedWeight


class Pruner:
    """What `nn.prune` returns: the scores for the optimizer, the schedule's clock, and the end.

    The state (scores, the step that is reached, a fixed mask) is part of the model's state_dict. To
    copy a model in the middle, copy both: copy.deepcopy((model, pruner)).
    """

    def __init__(self, model: nn.Module, choosers: list[Any], clock: Clock) -> None:
        self.model, self.choosers, self.clock = model, choosers, clock
        self.members: list[PrunedWeight] = [each for row in choosers for each in row.members]
        self._seen = self._versions()
        self._checked = not any(each.scores is not None for each in self.members)
        self._hooks = [
            model.register_forward_pre_hook(self._open),
            model.register_forward_hook(self._close, always_call=True),
        ]

    def score_parameters(self, lr: float = 0.02) -> dict[str, Any]:
        """Return the scores as a group for an optimizer, with their rate and no weight decay.

        Example:
            >>> import torch
            >>> from kofn import nn
            >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
            >>> pruner = nn.prune(model, 0.5, schedule=100)
            >>> groups = [{"params": pruner.other_parameters()}, pruner.score_parameters()]
            >>> optimizer = torch.optim.Adam(groups, lr=1e-3)
        """
        return {"params": list(self._scores()), "lr": lr, "weight_decay": 0.0}

    def other_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the model that are not scores."""
        scores = {id(each) for each in self._scores()}
        return [each for each in self.model.parameters() if id(each) not in scores]

    def step(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Count a step of the optimizer: fewer weights, a lower temperature, or the fixed mask.

        Call it after optimizer.step(). With `optimizer`, it checks that this one has the scores.
        Without, it sees that weights have changed since the last forward pass and scores have not.

        Raises:
            RuntimeError: the optimizer does not have the scores; at the first step only.
            TypeError: the model is sharded.
        """
        self._check(optimizer)
        steps = self.clock.owner.steps
        steps += 1
        freezes = self.clock.schedule.freezes_at
        if freezes is not None and self.frozen is False and int(steps) >= freezes:
            self.freeze()

    def freeze(self) -> None:
        """Fix the mask: from now on exactly as many weights as wanted, and no score, count."""
        for row in self.choosers:
            for member, mask in zip(row.members, self._chosen(row), strict=True):
                member.freeze(mask)
            row.close()

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

    def finalize(self) -> nn.Module:
        """Make the weights plain tensors with zeros where they are pruned; return the model.

        Nothing of `nn.prune` is left on the model: no parametrization, score, buffer or hook. The
        parameters are the objects that they were before, so an optimizer that has them goes on.

        Raises:
            RuntimeError: called twice.
            TypeError: the model is sharded.
        """
        if not self._hooks:
            raise RuntimeError("finalize() was called before; the model has no masks any more")
        if not self.frozen:
            self.freeze()
        for member in self.members:
            member.finalize()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        return self.model

    def __repr__(self) -> str:
        first = self.choosers[0]
        what = f"kept={first.kept:g} of {first.total:g}" if hasattr(first, "kept") else "n:m"
        tensors = f"{len(self.members)} weights"
        return f"Pruner({tensors}, {what}, step {self.steps} of {self.clock.schedule.steps})"

    def _chosen(self, row: Chooser) -> list[Tensor]:
        for member in self.members:
            refuse_sharded(member.target.name, member.original)
        return row.choose()

    def _scores(self) -> Iterator[nn.Parameter]:
        return (each.scores for each in self.members if each.scores is not None)

    def _open(self, *_: Any) -> None:
        if not torch.compiler.is_compiling() and not self._checked:
            self._seen = self._versions()
        if not self.frozen:
            for row in self.choosers:
                row.open()

    def _close(self, *_: Any) -> None:
        for row in self.choosers:
            row.close()

    def _versions(self) -> list[tuple[int, int]]:
        return [
            (each.original._version, 0 if each.scores is None else each.scores._version)
            for each in self.members
        ]

    def _check(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Raise if the optimizer does not have the scores; see `step`."""
        if self._checked or self.frozen:
            return
        if optimizer is not None:
            held = {id(each) for group in optimizer.param_groups for each in group["params"]}
            lost = [each for each in self.members if id(each.scores) not in held]
            self._checked = True
        else:
            pairs = list(zip(self._seen, self._versions(), strict=True))
            moved = any(before[0] != now[0] for before, now in pairs)
            still = [before[1] == now[1] for before, now in pairs]
            lost = [each for each, same in zip(self.members, still, strict=True) if same and moved]
            self._checked = moved or not all(still)
        if lost:
            raise RuntimeError(
                f"the optimizer does not have the scores of {lost[0].target.name}; give it "
                "pruner.score_parameters(), and call pruner.step() after optimizer.step()"
            )
