"""The networks behind `SoftTopKSelector`, trained together with the scores of the columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from kofn import schedules
from kofn.maps.topk import soft_topk


def train(
    options: Any,  # a SoftTopKSelector
    columns: np.ndarray,
    target: np.ndarray,
    importance: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Train; return the scores, their final weights, and the last loss.

    `importance` multiplies each row's loss; its mean is 1, and None stands for equal rows.
    """
    seed = check_random_state(options.random_state).randint(np.iinfo(np.int32).max)
    rng = torch.Generator().manual_seed(int(seed))
    inputs, wanted = torch.from_numpy(columns), torch.from_numpy(target)
    factors = None if importance is None else torch.from_numpy(importance)
    rows, n = inputs.shape
    classes = int(wanted.max()) + 1 if options.task_ == "classification" else 0
    # Equal scores would leave the first gradient alone to break the tie between twin columns.
    scores = (0.01 * torch.randn(options.ensemble, n, generator=rng)).requires_grad_()
    network = _Networks(options, n, max(classes, 1), rng)
    adam = torch.optim.Adam(
        [
            {"params": [scores], "lr": options.score_learning_rate},
            {"params": network.parameters, "lr": options.learning_rate},
        ]
    )
    size = min(rows, options.batch_size)
    order, start = torch.randperm(rows, generator=rng), 0
    # From the first step to the last.
    ends = options.temperature, options.final_temperature
    cool, loss_now = schedules.exponential(*ends, steps=max(options.steps - 1, 1)), math.nan
    for step in range(1, options.steps + 1):
        temperature = cool(step - 1)
        if start + size > rows:
            order, start = torch.randperm(rows, generator=rng), 0
        batch, start = order[start : start + size], start + size
        weights = soft_topk(scores, options.n_features_, link=options.link, temperature=temperature)
        answers = network(inputs[batch], weights)
        shares = None if factors is None else factors[batch]
        loss, score = _loss(answers, wanted[batch], classes, shares)
        adam.zero_grad()
        # The sum, so that each network learns at its own rate whatever their number.
        (loss * options.ensemble).backward()
        adam.step()
        loss_now = loss.item()
        if options.callback is not None:
            options.callback(step, loss_now, score.item(), temperature)
    with torch.no_grad():
        end = options.final_temperature
        weights = soft_topk(scores, options.n_features_, link=options.link, temperature=end).mean(0)
        mean = scores.mean(0)
    return mean.numpy(), weights.numpy(), loss_now


class _Networks:
    """`ensemble` one-hidden-layer networks side by side, each with its own weights of the columns.

    (rows, n) and (ensemble, n) -> (ensemble, rows, outputs).
    """

    def __init__(self, options: Any, n: int, outputs: int, rng: torch.Generator) -> None:
        count, width = options.ensemble, options.hidden
        self.options, self.rng = options, rng

        def normal(*shape: int, scale: float) -> torch.Tensor:
            return (scale * torch.randn(*shape, generator=rng)).requires_grad_()

        self.parameters: list[torch.Tensor] = []
        if width:
            # About k inputs of unit variance are open at a time, whatever n is.
            self.parameters.append(
                normal(count, n, width, scale=1 / math.sqrt(options.n_features_))
            )
            self.parameters.append(normal(count, 1, width, scale=0.1))
        # A linear model needs no randomness to start, and its sign would mislead the scores.
        last = 1 / math.sqrt(width) if width else 0.0
        self.parameters.append(normal(count, width or n, outputs, scale=last))
        self.parameters.append(torch.zeros(count, 1, outputs, requires_grad=True))

    def __call__(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        options = self.options
        blur = options.noise * torch.randn(rows.shape, generator=self.rng)
        values = rows * weights[:, None, :] + blur
        if options.hidden:
            values = torch.relu(torch.baddbmm(self.parameters[1], values, self.parameters[0]))
            if options.dropout:
                kept = torch.rand(values.shape, generator=self.rng) >= options.dropout
                values = values * kept / (1 - options.dropout)
        return torch.baddbmm(self.parameters[-1], values, self.parameters[-2])


def _loss(
    answers: torch.Tensor, wanted: torch.Tensor, classes: int, factors: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean loss over networks and rows, and the accuracy or R²."""
    count = answers.shape[0]
    repeated = wanted.expand(count, -1).reshape(-1)
    answers = answers.reshape(repeated.shape[0], -1)
    functions = torch.nn.functional
    if classes:
        right = answers.detach().argmax(-1) == repeated
        loss = _mean(functions.cross_entropy, answers, repeated, factors)
        return loss, right.to(torch.float32).mean()
    loss = _mean(functions.mse_loss, answers[:, 0], repeated, factors)
    return loss, 1 - loss.detach()


def _mean(loss: Any, answers: Any, wanted: Any, factors: torch.Tensor | None) -> torch.Tensor:
    if factors is None:
        return loss(answers, wanted)
    each = loss(answers, wanted, reduction="none").reshape(-1, len(factors))
    return (factors * each).mean()
