"""A sender writes an image as a sequence of symbols, and a receiver names the digit from them.

    python examples/messages.py         # the table, 5 seeds, minutes

The sender is a sequence decoder: each of its three symbols, one of four, is fed back to it before
the next one. With gumbel_softmax the symbols are relaxed, so the gradient of the receiver's loss
passes through the whole sequence; hard ones take their gradient from relaxed ones. Without any
gradient through symbols, leave-one-out compares four messages of each image. The table has the
share of held-out digits that the receiver names right when symbols are the sender's likeliest.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from kofn import gumbel_max, gumbel_softmax, schedules
from kofn.estimators import surrogate

SYMBOLS, LENGTH, INK, HIDDEN = 4, 3, 16, 64
STEPS, BATCH, SAMPLES, RATE, PART = 600, 128, 4, 3e-3, 40
WAYS = ("relaxed, T = 1", "relaxed, T from 1 to 0.1", "hard", "leave-one-out")
MEASURED = "share of held-out digits named right"
EVERY = "steps"


class Sender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU())
        self.cell = nn.GRUCell(SYMBOLS, HIDDEN)
        self.score = nn.Linear(HIDDEN, SYMBOLS)

    def forward(self, images: Tensor, way: str, temperature: float) -> tuple[Tensor, Tensor]:
        """Return messages [N, 3, 4] and their log-probabilities, which only samples need."""
        state, total = self.see(images / INK), images.new_zeros(len(images))
        symbol, message = images.new_zeros(len(images), SYMBOLS), []
        for _ in range(LENGTH):
            state = self.cell(symbol, state)
            logits = self.score(state)
            if way == "likeliest":
                symbol = one_hot(logits.argmax(-1), SYMBOLS).float()
            elif way == "leave-one-out":
                symbol = one_hot(gumbel_max(logits), SYMBOLS).float()
                total = total + (logits.log_softmax(-1) * symbol).sum(-1)
            else:
                symbol = gumbel_softmax(logits, temperature, hard=way == "hard")
            message.append(symbol)
        return torch.stack(message, 1), total


def train(way: str, seed: int) -> list[tuple[int, float]]:
    """Return the share of held-out digits that are named right, after every 40 steps."""
    torch.manual_seed(seed)
    images, labels = map(torch.as_tensor, load_digits(return_X_y=True))
    order = torch.randperm(len(labels))
    x, y = images[order].float(), labels[order]
    sender, curve = Sender(), []
    receiver = nn.Sequential(
        nn.Flatten(), nn.Linear(LENGTH * SYMBOLS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)
    )
    optimizer = torch.optim.Adam([*sender.parameters(), *receiver.parameters()], lr=RATE)
    cool = schedules.exponential(1.0, 0.1 if "to 0.1" in way else 1.0, steps=STEPS)
    samples = SAMPLES if way == "leave-one-out" else 1
    for step in range(1, STEPS + 1):
        rows = torch.randint(1347, (BATCH,)).repeat(samples)
        message, log_prob = sender(x[rows], way, cool(step))
        loss = cross_entropy(receiver(message), y[rows], reduction="none")
        if samples > 1:
            apart = samples, BATCH
            loss = surrogate(loss.view(apart), log_prob.view(apart), baseline="leave_one_out")
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        if step % PART == 0:
            with torch.no_grad():
                found = receiver(sender(x[1347:], "likeliest", 1.0)[0]).argmax(-1)
            curve.append((step, (found == y[1347:]).float().mean().item()))
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print(MEASURED)
    for way in WAYS:
        ends = [train(way, seed)[-1][1] for seed in seeds]
        print(f"{way:26}{statistics.mean(ends):.3f}  ", *(f"{end:.3f}" for end in ends))


if __name__ == "__main__":
    main()
