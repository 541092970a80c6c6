"""How many bits for each layer? A budget of bits, shared among layers by soft_knapsack.

    python examples/bits.py             # the table, 5 seeds, minutes

A small convolutional network learns scikit-learn's digits with weights of few bits (rounded in
every step, with a straight-through gradient). Each layer has one bit per weight. A further bit for
all weights of a layer costs as many bits as the layer has weights. Uniform bits spend the same
budget on every layer alike. Measured ones go where a bit lowers the loss of a network of full
precision most. Learned ones are weights of soft_knapsack between both roundings, cooled in 70 % of
the steps, then whole. The table has the bits per weight and the held-out accuracy.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from kofn import schedules, soft_knapsack

STEPS, BATCH, RATE, WHOLE = 400, 128, 3e-3, 0.7
WIDTHS = {1: 1.596, 2: 0.996, 3: 0.586, 4: 0.335, 5: 0.188, 6: 0.104}
"""The best distances of levels for normal weights of deviation 1, by the bits."""
MORE = len(WIDTHS) - 1


def network() -> nn.Sequential:
    layers = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
    hidden, last = nn.Linear(128, 64), nn.Linear(64, 10)
    pooled = nn.MaxPool2d(2)
    features = layers[0], nn.ReLU(), pooled, layers[1], nn.ReLU(), pooled, nn.Flatten()
    return nn.Sequential(*features, hidden, nn.ReLU(), last)


def levels(weight: Tensor, bits: int) -> Tensor:
    """Round to the 2^bits levels around 0."""
    width, most = WIDTHS[bits] * weight.std(), 2 ** (bits - 1)
    return ((weight / width).floor().clamp(-most, most - 1) + 0.5) * width


def rounded(weight: Tensor, shares: Tensor) -> Tensor:
    """Round to one bit, and to more by their shares, with the gradient of the weight itself."""
    with torch.no_grad():
        every = torch.stack([levels(weight, bits) for bits in WIDTHS])
    found = every[0] + torch.tensordot(shares, every.diff(dim=0), 1)
    return weight + (found - weight.detach())


class Net:
    """A network, its weights that are rounded, and what a bit for a layer costs, in thousands."""

    def __init__(self) -> None:
        self.model = network()
        parameters = self.model.named_parameters()
        self.weights = {name: p for name, p in parameters if name.endswith("weight")}
        self.costs = torch.tensor([p.numel() / 1000 for p in self.weights.values()])
        self.prices = self.costs.repeat_interleave(MORE)

    def __call__(self, images: Tensor, shares: Tensor | None) -> Tensor:
        if shares is None:  # full precision
            return self.model(images)
        pairs = zip(self.weights.items(), shares, strict=True)
        found = {name: rounded(weight, share) for (name, weight), share in pairs}
        return functional_call(self.model, found, (images,))

    def bits(self, shares: Tensor) -> float:
        return 1 + ((self.costs @ shares.sum(-1)) / self.costs.sum()).item()


def choice(
    net: Net, scores: Tensor, budget: float, temperature: float = 1.0, hard: bool = False
) -> Tensor:
    """Return the share of every further bit of each layer; more bits never go before fewer."""
    falling = scores.sort(-1, descending=True).values
    spend = (budget - 1) * net.costs.sum() * (1 + 1e-6)
    return soft_knapsack(
        falling.flatten(), net.prices, spend, temperature=temperature, hard=hard
    ).view_as(scores)


@torch.no_grad()
def gains(net: Net, images: Tensor, labels: Tensor) -> Tensor:
    """Return by how much each further bit of a layer lowers the loss, the other layers as is."""
    found = []
    for name, weight in net.weights.items():
        each = [
            cross_entropy(functional_call(net.model, {name: levels(weight, b)}, (images,)), labels)
            for b in WIDTHS
        ]
        found.append(-torch.stack(each).diff())
    return torch.stack(found).cummin(-1).values


def train(way: str, budget: float, seed: int) -> tuple[float, float, list[int]]:
    """Return the bits per weight, the held-out accuracy, and the bits of each layer."""
    torch.manual_seed(seed)
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.25, random_state=seed)
    x, held_out, y, answers = map(torch.as_tensor, parts)
    x, held_out = (each.float().view(-1, 1, 8, 8) for each in (x, held_out))
    net = Net()
    scores = (0.5 ** torch.arange(MORE)).repeat(len(net.costs), 1).requires_grad_()
    cooling = round(WHOLE * STEPS)
    cool = schedules.exponential(1.0, 0.01, steps=cooling)
    fixed: Tensor | None = (torch.arange(MORE) < budget - 1).float().expand(len(net.costs), -1)

    def fit(steps: int, shares: Callable[[int], Tensor | None], *more: Tensor) -> None:
        optimizer = torch.optim.Adam([*net.model.parameters(), *more], lr=RATE)
        for step in range(steps):
            rows = torch.randint(len(x), (BATCH,))
            loss = cross_entropy(net(x[rows], shares(step)), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    first = {"measured": STEPS // 2, "learned": cooling}.get(way, 0)
    if way == "full":
        fixed = None
    elif way == "measured":
        fit(first, lambda step: None)
        fixed = choice(net, gains(net, x, y), budget, hard=True)
    elif way == "learned":
        fit(first, lambda step: choice(net, scores, budget, cool(step)), scores)
        fixed = choice(net, scores.detach(), budget, hard=True)
    fit(STEPS - first, lambda step: fixed)
    with torch.no_grad():
        right = (net(held_out, fixed).argmax(-1) == answers).float().mean().item()
    if fixed is None:
        return 32.0, right, []
    return net.bits(fixed), right, [1 + int(n) for n in fixed.sum(-1)]


ROWS = [("full", 32.0), *(("uniform", float(b)) for b in (1, 2, 3))]
ROWS += [(way, b) for way in ("measured", "learned") for b in (1.25, 1.5, 2.0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print("bits      budget   used  accuracy          bits of the layers, by seed")
    for way, budget in ROWS:
        used, right, bits = zip(*(train(way, budget, seed) for seed in seeds), strict=True)
        spread = statistics.stdev(right) if len(right) > 1 else 0.0
        print(f"{way:9} {budget:6g} {statistics.mean(used):6.2f}", end="  ")
        print(f"{statistics.mean(right):.3f} ± {spread:.3f}  ", end="")
        print(*("-".join(map(str, each)) for each in bits))


if __name__ == "__main__":
    main()
