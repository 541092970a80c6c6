"""A teacher that is centred: prototypes learn from their own choices, and must not all choose one.

    python examples/centring.py        # a few seconds

Two noisy views of each point have scores for 16 prototypes. What the teacher says of one view is
the target of the student for the other, as in SwAV and DINO. A plain softmax lets some prototypes
choose ever more and others nothing. A matrix with two margins gives each the same share of the
batch, even at a temperature at which exp of the scores has no floats.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kofn import soft_assignment

GROUPS, PROTOTYPES, BATCH, SIZE = 16, 16, 256, 32
TEACHER, STUDENT = 0.02, 0.1  # temperatures
SCALE = 3.0  # of the cosines: exp(3/0.02) is more than float32 has


def softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores / TEACHER, -1)


def three_rounds(scores: Tensor) -> Tensor:
    return soft_assignment(scores, 1, link="exponential", temperature=TEACHER, rounds=3)[0]


def both_margins(scores: Tensor) -> Tensor:
    return soft_assignment(scores, 1, link="exponential", temperature=TEACHER)


def divided(scores: Tensor) -> Tensor:
    """Sinkhorn's rounds as they are usually written."""
    q = torch.exp(scores / TEACHER)
    for _ in range(3):
        q = q / q.sum(0) * (len(q) / PROTOTYPES)
        q = q / q.sum(1, keepdim=True)
    return q


TEACHERS = {
    "softmax": softmax,
    "three rounds": three_rounds,
    "both margins": both_margins,
    "exp, then three rounds": divided,
}


def train(teacher: str, seed: int, steps: int) -> tuple[int, float]:
    """Return how many prototypes are chosen, and the share of points whose group has theirs."""
    rng = torch.Generator().manual_seed(seed)
    centres = torch.randn(GROUPS, SIZE, generator=rng)
    prototypes = torch.randn(PROTOTYPES, SIZE, generator=rng).requires_grad_()
    adam = torch.optim.Adam([prototypes], lr=0.02)

    def batch() -> tuple[Tensor, list[Tensor]]:
        groups = torch.randint(GROUPS, (BATCH,), generator=rng)
        views = (centres[groups] + 0.7 * torch.randn(BATCH, SIZE, generator=rng) for _ in range(2))
        return groups, [SCALE * normalize(x) @ normalize(prototypes).T for x in views]

    for _ in range(steps):
        _, (one, other) = batch()
        loss = torch.zeros(())
        for taught, learns in ((one, other), (other, one)):
            target = TEACHERS[teacher](taught.detach())
            loss = loss - (target * torch.log_softmax(learns / STUDENT, -1)).sum(-1).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    groups, (found, _) = batch()
    chosen = found.argmax(-1)
    table = torch.zeros(GROUPS, PROTOTYPES).index_put_((groups, chosen), torch.ones(BATCH), True)
    return len(chosen.unique()), table.amax(0).sum().item() / BATCH


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    for teacher in TEACHERS:
        used, right = train(teacher, options.seed, options.steps)
        print(f"{teacher:24s}prototypes chosen {used:3d}   points of their group {right:5.1%}")


if __name__ == "__main__":
    main()
