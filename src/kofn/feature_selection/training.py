"""The networks behind `SoftTopKSelector`, trained together with the scores of the columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from kofn import schedules
from kofn.feature_selection.choices import Choice

_OWN: dict[str, Any] = dict(dtype=torch.float32, device="cpu")
"""Options of the tensors made here, whatever the process's defaults: columns are so."""


def train(
    options: Any,  # a SoftTopKSelector
    choice: Choice,
    columns: np.ndarray,
    target: np.ndarray,
    classes: list[int],
    importance: np.ndarray | None,
    seed: int,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Train; return the scores and final weights (groups,), means over networks, and the last loss.

    `target` is (rows, targets): indices of `classes`, or numbers where there are none.
    `importance` multiplies each row's loss; its mean is 1, and None stands for equal rows.
    """
    rng = torch.Generator().manual_seed(seed)
    inputs, wanted = torch.from_numpy(columns), torch.from_numpy(target)
    members = torch.from_numpy(choice.members)
    factors = None if importance is None else torch.from_numpy(importance)
    rows = len(inputs)
    # Equal scores would leave the first gradient alone to break the tie between twin columns.
    start = 0.01 * torch.randn(options.ensemble, choice.groups, generator=rng, **_OWN)
    scores = start.requires_grad_()
    cool, shrink = _schedules(options, choice)
    opened = len(choice.members) * shrink(0) / choice.everything
    network = _Networks(options, len(choice.members), opened, sum(classes) or target.shape[1], rng)
    adam = torch.optim.Adam(
        [
            {"params": [scores], "lr": options.score_learning_rate},
            {"params": network.parameters, "lr": options.learning_rate},
        ]
    )
    size = min(rows, options.batch_size)
    order, first, loss_now = torch.randperm(rows, generator=rng, device="cpu"), 0, math.nan
    for step in range(options.steps):
        if first + size > rows:
            order, first = torch.randperm(rows, generator=rng, device="cpu"), 0
        batch, first = order[first : first + size], first + size
        weights = choice.weights(scores, shrink(step), options.link, cool(step))
        answers = network(inputs[batch], weights[:, members])
        shares = None if factors is None else factors[batch]
        loss, score = _loss(answers, wanted[batch], classes, shares)
        adam.zero_grad()
        # The sum, so that each network learns at its own rate whatever their number.
        (loss * options.ensemble).backward()
        adam.step()
        loss_now = loss.item()
        if options.callback is not None:
            options.callback(step + 1, loss_now, score.item(), cool(step))
    with torch.no_grad():
        end = options.final_temperature
        weights = choice.weights(scores, choice.limit, options.link, end).mean(0)
        mean = scores.mean(0)
    return mean.numpy(), weights.numpy(), loss_now


def _schedules(options: Any, choice: Choice) -> tuple[schedules.Schedule, schedules.Schedule]:
    """Return the temperature and the limit by step, counted from 0; the last step is at the end."""
    last = options.steps - 1
    cool = schedules.exponential(options.temperature, options.final_temperature, max(last, 1))
    falling = min(round(options.elimination * options.steps), last)
    if not falling or choice.everything == choice.limit:
        return cool, schedules.constant(choice.limit)
    return cool, schedules.exponential(choice.everything, choice.limit, falling)


class _Networks:
    """`ensemble` one-hidden-layer networks side by side, each with its own weights of the columns.

    (rows, n) and (ensemble, n) -> (ensemble, rows, outputs).
    """

    def __init__(
        self, options: Any, n: int, opened: float, outputs: int, rng: torch.Generator
    ) -> None:
        count, width = options.ensemble, options.hidden
        self.options, self.rng = options, rng

        def normal(*shape: int, scale: float) -> torch.Tensor:
            return (scale * torch.randn(*shape, generator=rng, **_OWN)).requires_grad_()

        self.parameters: list[torch.Tensor] = []
        if width:
            # As many inputs of unit variance are open at first; the sum of them is of order 1.
            self.parameters.append(normal(count, n, width, scale=1 / math.sqrt(opened)))
            self.parameters.append(normal(count, 1, width, scale=0.1))
        # A linear model needs no randomness to start, and its sign would mislead the scores.
        last = 1 / math.sqrt(width) if width else 0.0
        self.parameters.append(normal(count, width or n, outputs, scale=last))
        self.parameters.append(torch.zeros(count, 1, outputs, requires_grad=True, **_OWN))

    def __call__(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        options = self.options
        blur = options.noise * torch.randn(rows.shape, generator=self.rng, **_OWN)
        values = rows * weights[:, None, :] + blur
        if options.hidden:
            values = torch.relu(torch.baddbmm(self.parameters[1], values, self.parameters[0]))
            if options.dropout:
                kept = torch.rand(values.shape, generator=self.rng, **_OWN) >= options.dropout
                values = values * kept / (1 - options.dropout)
        return torch.baddbmm(self.parameters[-1], values, self.parameters[-2])


def _loss(
    answers: torch.Tensor, wanted: torch.Tensor, classes: list[int], factors: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean loss over networks, rows and targets, and the accuracy or R².

    answers are (networks, rows, outputs), wanted (rows, targets).
    """
    if not classes:
        errors = (answers - wanted) ** 2
        loss = _mean(errors.mean(-1), factors)
        return loss, 1 - loss.detach()
    losses, right = [], []
    for logits, labels in zip(torch.split(answers, classes, -1), wanted.T, strict=True):
        each = labels.expand(len(answers), -1)
        losses.append(
            torch.nn.functional.cross_entropy(logits.movedim(-1, 1), each, reduction="none")
        )
        right.append((logits.detach().argmax(-1) == each).to(torch.float32).mean())
    return _mean(torch.stack(losses).mean(0), factors), torch.stack(right).mean()


def _mean(each: torch.Tensor, factors: torch.Tensor | None) -> torch.Tensor:
    return each.mean() if factors is None else (factors * each).mean()
