"""The handle of a model that is being pruned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kofn.arrays.checks import check_flag
from kofn.nn.pruning import channels
from kofn.nn.pruning.choosers import Clock
from kofn.nn.pruning.score_check import ScoreCheck, StepCheck
from kofn.nn.pruning.views import Views
from kofn.nn.pruning.weight import Chooser


class Pruner(Views):
    """The handle that `nn.prune` returns: scores to optimize, steps to count, weights to finalize.

    The state (scores, the step that is reached, a fixed mask) is part of the model's state_dict. To
    copy a model in the middle, copy both: copy.deepcopy((model, pruner)).
    """

    def __init__(self, model: nn.Module, choosers: list[Chooser], clock: Clock) -> None:
        super().__init__(choosers, clock)
        self.model = model
        self._check = ScoreCheck(self.members)
        self._step_check = StepCheck(self.members)
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
        """Advance the schedule: fewer weights, a lower temperature, and at last a fixed mask.

        Call it after optimizer.step(). With `optimizer`, it checks that this one has the scores.
        Without, it sees that weights have changed since the last forward pass and scores have not.

        Raises:
            RuntimeError: the optimizer does not have the scores; at the first step only. Or
                called after finalize().
            TypeError: the model was sharded after nn.prune.
            ValueError: the mask is to be fixed, and scores are NaN or infinite.
        """
        self._refuse_finalized()
        self._step_check.done = True
        if not self.frozen:
            self._check(optimizer)
        steps = self.clock.owner.steps
        steps += 1
        freezes = self.clock.schedule.freezes_at
        if freezes is not None and self.frozen is False and int(steps) >= freezes:
            self.freeze()

    def freeze(self) -> None:
        """Fix the mask: it keeps exactly the wanted number of weights, whatever the scores become.

        Raises:
            RuntimeError: called after finalize().
            TypeError: the model was sharded after nn.prune.
            ValueError: scores are NaN or infinite.
        """
        self._refuse_finalized()
        for member, mask in self._chosen():
            member.freeze(mask)
        for row in self.choosers:
            row.close()

    def finalize(self, take_out: bool = False) -> nn.Module:
        """Make the weights plain tensors with zeros where they are pruned; return the model.

        With take_out, for pattern="channel", layers become smaller, with new parameters: those of a
        torch.nn.Sequential of linear and convolution layers, with what takes 0 to 0 in each channel
        between them. Another model is refused by name, and stays as it is.

        Nothing of `nn.prune` is left on the model: no parametrization, score, buffer or hook. The
        parameters are the objects that they were before, so an optimizer that has them goes on.
        Its further steps fill the zeros again: fine-tune before, with the fixed mask (`frozen` of
        the schedule, or freeze()).

        Raises:
            RuntimeError: called twice.
            TypeError: the model was sharded after nn.prune.
            ValueError: scores are NaN or infinite; or channels cannot be taken out.
        """
        self._refuse_finalized()
        taken = check_flag("take_out", take_out)
        cuts = channels.cuts_of(self.model, self.members, self.masks) if taken else []
        if not self.frozen:
            self.freeze()
        for member in self.members:
            member.finalize()
        for cut in cuts:
            channels.take_out(cut)
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.finalized = [], True
        return self.model

    def _scores(self) -> Iterator[nn.Parameter]:
        return (each.scores for each in self.members if each.scores is not None)

    def _open(self, *_: object) -> None:
        if not torch.compiler.is_compiling():
            self._check.begin()
            if self.model.training and not self.frozen:
                self._step_check.begin()
        if not self.frozen:
            for row in self.choosers:
                row.open()

    def _close(self, *_: object) -> None:
        for row in self.choosers:
            row.close()
