"""Semantic ids without collisions: every item takes a pair of codes that no other item has.

    python examples/semantic_ids.py        # a few seconds

The first code of an item is its cluster, the second the nearest of 16 centres of what is left of
it. By nearest centres, many items have the same pair. Instead, a cluster takes at most 16 items,
and in each cluster every item takes a code of its own, together those with the least distances.
"""

from __future__ import annotations

import argparse

import numpy as np

from kofn import soft_assignment

ITEMS, CODES, SIZE = 230, 16, 8
Array = np.ndarray


def distances(x: Array, centres: Array) -> Array:
    return ((x[..., :, None, :] - centres[..., None, :, :]) ** 2).sum(-1)


def centres_of(x: Array, rng: np.random.Generator) -> Array:
    """Return the centres that k-means finds."""
    centres = rng.choice(x, CODES, replace=False)
    for _ in range(20):
        chosen = np.eye(CODES)[distances(x, centres).argmin(1)]
        centres = chosen.T @ x / np.maximum(chosen.sum(0), 1)[:, None]
    return centres


def own_codes(cost: Array) -> Array:
    """Return a column for each row, no column twice: rows take 1, and one more row the rest."""
    rows, columns = cost.shape
    scores = np.concatenate([-cost, np.zeros((1, columns))])
    k = np.append(np.ones(rows), columns - rows)
    return soft_assignment(scores, k, 1, temperature=0.003, hard=True)[:-1].argmax(1)


def clusters(cost: Array) -> Array:
    """Return a cluster for each row, with at most CODES rows each."""
    rest = CODES * cost.shape[1] - len(cost)  # places that stay free: CODES more rows take them
    scores = np.concatenate([-cost, np.zeros((CODES, cost.shape[1]))])
    k = np.append(np.ones(len(cost)), np.full(CODES, rest / CODES))
    return soft_assignment(scores, k, CODES, temperature=0.003, hard=True)[: len(cost)].argmax(1)


def ids(seed: int, own: bool) -> tuple[Array, float]:
    """Return the pairs of all items, and the share of their variance that the centres lack."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ITEMS, SIZE)) * np.linspace(2, 0.5, SIZE)
    first_centres = centres_of(x, rng)
    cost = distances(x, first_centres)
    first = clusters(cost) if own else cost.argmin(1)
    left = x - first_centres[first]
    second_centres = centres_of(left, rng)
    cost, second = distances(left, second_centres), np.zeros(ITEMS, int)
    for code in range(CODES):
        mine = first == code
        second[mine] = own_codes(cost[mine]) if own else cost[mine].argmin(1)
    error = ((left - second_centres[second]) ** 2).sum() / ((x - x.mean(0)) ** 2).sum()
    return np.stack([first, second], 1), float(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name, own in (("nearest centres", False), ("a pair of its own", True)):
        pairs, error = ids(options.seed, own)
        different = len(np.unique(pairs, axis=0))
        print(f"{name:20s}items {ITEMS}   pairs {different:4d}   error {error:5.1%}")


if __name__ == "__main__":
    main()
