"""Clusters of bounded size: k-means in which no cluster has too few points or too many.

    python examples/bounded_clusters.py        # a few seconds

Each point takes one cluster, and each cluster has MOST places. Rows without a point take those
that stay free. There are MOST − LEAST of them and each takes a cluster at most once, so at least
LEAST places of every cluster are for points. Prices decide: a point on the border of two clusters
may make one of them larger by 1.
"""

from __future__ import annotations

import argparse

import numpy as np

from kofn import soft_assignment

POINTS, CLUSTERS, LEAST, MOST = 600, 8, 60, 90
Array = np.ndarray


def points(seed: int) -> Array:
    """Return a crowd, and clusters that are smaller the further out they are."""
    rng = np.random.default_rng(seed)
    sizes = rng.multinomial(POINTS, 0.5 ** np.arange(1, CLUSTERS + 1) / (1 - 0.5**CLUSTERS))
    angles = np.arange(CLUSTERS) * 2.4
    centres = np.arange(CLUSTERS)[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
    return np.repeat(centres, sizes, 0) + rng.normal(size=(POINTS, 2))


def bounded(cost: Array) -> Array:
    free = MOST - LEAST
    scores = np.concatenate([-cost, np.zeros((free, CLUSTERS))])
    k = np.append(np.ones(POINTS), np.full(free, (CLUSTERS * MOST - POINTS) / free))
    chosen = soft_assignment(scores, k, MOST, temperature=0.01, hard=True)
    return chosen[:POINTS]


def equal(cost: Array) -> Array:
    return soft_assignment(-cost, 1, POINTS / CLUSTERS, temperature=0.01, hard=True)


def nearest(cost: Array) -> Array:
    return np.eye(CLUSTERS)[cost.argmin(1)]


WAYS = {"nearest": nearest, f"{LEAST} to {MOST}": bounded, "equal": equal}


def cluster(way: str, seed: int) -> tuple[list[int], float]:
    """Return the sizes of the clusters, in order, and the mean squared distance to a centre."""
    x = points(seed)
    centres = np.random.default_rng(seed).choice(x, CLUSTERS, replace=False)
    for _ in range(20):
        cost = ((x[:, None] - centres) ** 2).sum(-1)
        chosen = WAYS[way](cost)
        centres = chosen.T @ x / np.maximum(chosen.sum(0), 1)[:, None]
    return sorted(chosen.sum(0).astype(int).tolist()), float((chosen * cost).sum() / POINTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for way in WAYS:
        sizes, distance = cluster(way, options.seed)
        print(f"{way:12s}squared distance {distance:5.2f}   sizes {sizes}")


if __name__ == "__main__":
    main()
