"""Draw what a router and attention learned, for nn_router.md and nn_attention.md: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from kofn import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import moe

IMAGES = Path(__file__).parent / "images"
STEPS, BATCH, LENGTH, WIDTH, MARKED = 400, 64, 16, 8, 2

KINDS = {
    "softmax": dict(alpha=1.0),
    "entmax, α = 1.5": dict(alpha=1.5),
    "soft top-k, k = 2": dict(weights="soft_topk", k=2),
    "sparsemax": dict(weights="sparsemax"),
}


def draw_router(image: Path, seed: int = 0) -> None:
    """Which expert each group's inputs go to, after training."""
    figure, axes = plt.subplots(1, len(moe.ROUTERS), figsize=(10, 4), sharey=True)
    for axis, name in zip(axes, moe.ROUTERS, strict=True):
        error, share = moe.train(name, seed)
        axis.imshow(share.numpy() * moe.GROUPS, cmap="Blues", vmin=0, vmax=1)
        axis.set(title=f"{name}\nerror {error:.2f}", xlabel="expert", xticks=[], yticks=[])
    axes[0].set_ylabel("group")
    save(figure, image)


def sequences(batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random vectors, of which two are marked in their first entry, and the mean of those two."""
    x = torch.randn(batch, length, WIDTH)
    marked = torch.zeros(batch, length).scatter(
        1, torch.rand(batch, length).topk(MARKED).indices, 1
    )
    x[..., 0] = marked
    return x, (marked[..., None] * x).sum(1, keepdim=True) / MARKED, marked


def trained(kind: dict, seed: int = 0) -> nn.SparseAttention:
    torch.manual_seed(seed)
    net = nn.SparseAttention(WIDTH, 1, batch_first=True, **kind)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(STEPS):
        x, wanted, _ = sequences(BATCH, LENGTH)
        optimizer.zero_grad()
        (net(x, x, x)[0] - wanted).square().mean().backward()
        optimizer.step()
    return net


@torch.no_grad()
def draw_attention(image: Path) -> None:
    """The weights of one query over a sequence eight times as long as those it was trained on."""
    figure, axes = plt.subplots(len(KINDS), 1, figsize=(10, 5.6), sharex=True, sharey=True)
    for axis, (name, kind) in zip(axes, KINDS.items(), strict=True):
        with torch.enable_grad():
            net = trained(kind)
        torch.manual_seed(1)
        x, wanted, marked = sequences(256, 8 * LENGTH)
        output, weights = net(x, x, x)
        error = (output - wanted).square().mean() / wanted.var()
        right = (weights * marked[:, None]).sum(-1).mean()
        axis.bar(range(8 * LENGTH), weights[0, 0].numpy(), color="#0072B2", width=1.0)
        places = marked[0].nonzero()[:, 0]
        axis.plot(places.numpy(), [0.62] * MARKED, "v", color="#D55E00")
        said = f"{name}: {right:.0%} of the weight at the marked positions, error {error:.2f}"
        axis.set_title(said, fontsize=10, loc="left")
        axis.set(ylim=(0, 0.7), yticks=[0, 0.5])
        print(said)
    axes[-1].set_xlabel("position")
    save(figure, image)


def save(figure: plt.Figure, image: Path) -> None:
    figure.set_layout_engine("constrained")
    figure.savefig(image, dpi=120, facecolor="white", metadata={"Software": None})
    plt.close(figure)
    print(f"wrote {image}")


if __name__ == "__main__":
    draw_attention(IMAGES / "nn_attention.png")
    draw_router(IMAGES / "nn_router.png")
