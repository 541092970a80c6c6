"""Count how many of five planted columns are found in wider and wider tables.

python docs/measure_wide_tables.py prints the figures of docs/feature_selection.md; with
--triples, how many of three columns are found whose product alone decides the target.
"""

import sys
import time
import warnings

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_selection import RFE

from kofn.feature_selection import SoftTopKSelector

SEEDS = 5
COLUMNS, ROWS = (100, 1_000, 10_000), (1_000, 500, 250)


def planted(rows, columns, seed):
    """Two pairs of columns matter only together, and column 4 alone."""
    X = np.random.default_rng(seed).normal(size=(rows, columns))
    return X, np.sign(X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3] + X[:, 4])


def triple(rows, columns, seed):
    """Only the product of columns 0, 1 and 2 tells anything."""
    X = np.random.default_rng(seed).normal(size=(rows, columns))
    return X, np.sign(X[:, 0] * X[:, 1] * X[:, 2])


def triples():
    for rows, columns, steps in ((1_000, 10, 300), (1_000, 20, 300), (5_000, 20, 1_000)):
        found = [
            SoftTopKSelector(3, steps=steps, random_state=seed)
            .fit(*triple(rows, columns, seed))
            .support_[:3]
            .sum()
            for seed in range(SEEDS)
        ]
        print(f"{columns} columns, {rows:,} rows, {steps:,} steps: {np.mean(found):.1f} of 3")


def forest(seed):
    trees = RandomForestClassifier(random_state=seed)
    return RFE(trees, n_features_to_select=5, step=0.2)


METHODS = {
    "soft_topk": lambda seed: SoftTopKSelector(5, random_state=seed),
    "all columns trained on": lambda seed: SoftTopKSelector(5, screen=None, random_state=seed),
    "k fixed": lambda seed: SoftTopKSelector(5, elimination=0, screen=None, random_state=seed),
    "forest RFE": forest,
}


def measured(make, rows, columns):
    """Return the mean number of planted columns found, and the CPU seconds of a fit."""
    found, began = [], time.process_time()
    for seed in range(SEEDS):
        chosen = make(seed).fit(*planted(rows, columns, seed)).get_support()
        found.append(chosen[:5].sum())
    return np.mean(found), (time.process_time() - began) / SEEDS


def main():
    """Print the table that was asked for."""
    warnings.simplefilter("ignore")
    if "--triples" in sys.argv:
        triples()
        return
    SoftTopKSelector(5, steps=2).fit(*planted(100, 20, 0))  # the first fit loads kernels
    for columns in COLUMNS:
        for name, make in METHODS.items():
            # The other methods on the longest table only, and where networks are not too wide.
            for rows in ROWS if name == "soft_topk" else ROWS[:1]:
                if columns < 10_000 or name in ("soft_topk", "forest RFE"):
                    found, seconds = measured(make, rows, columns)
                    case = f"{columns:>6,} columns, {rows:>5,} rows, {name}"
                    print(f"{case}: {found:.1f} of 5, {seconds:.1f} CPU s", flush=True)


if __name__ == "__main__":
    main()
