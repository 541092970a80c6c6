"""What kofn answers for the matrices on which the explorer's solver is tested.

`python tests/commands/explorer_golden_matrix.py` writes data/explorer_matrix.json beside it again.
"""

import itertools
import json
from pathlib import Path

import numpy as np

from explorer_golden import LINKS, spelled
from kofn import links, soft_assignment, soft_assignment_prices

FILE = Path(__file__).parent / "data" / "explorer_matrix.json"

SIX = [
    *([3, 1, 0.4, 0], [2.5, 2, 0.2, 0.9], [2, 0.5, 1.2, 1.6]),
    *([3, 2.2, 1.5, 0.1], [1.8, 1.9, 0.3, 0.6], [2.7, 0.4, 1.1, 1]),
]
TAKEN = [1, 1, 1, 2, 1, 1]
FOUR = [[1.5, -0.5, 0.25], [0, 1, 2], [-1, 0.75, 0.5], [2, 2, -2]]
RANDOM = np.random.default_rng(0).normal(size=(8, 6)).round(2).tolist()
WIDE = np.random.default_rng(1).uniform(-100, 100, (5, 3)).round(2).tolist()
# Scores, cells that are masked, k of rows, capacity of columns, T.
CASES = [
    *((SIX, [], TAKEN, [2, 2, 1.5, 1.5], T) for T in (0.05, 0.5, 10)),
    (SIX, [0, 5, 14, 20], TAKEN, [1.25, 2.35, 0.65, 2.75], 0.3),
    (SIX, [], TAKEN, [2, 2, 2, 1], 0.01),  # whole numbers: no weight between 0 and 1
    (RANDOM, [], [1, 2, 0.5, 3, 2.25, 1, 4, 1.25], [2, 3.5, 1, 4.5, 3, 1], 0.2),
    (WIDE, [], [1, 1.5, 0.75, 2.25, 1.5], [2.25, 1.75, 3], 0.05),  # far below the spread
    ([[11.65, 100], [-10.75, 20.78]], [], [1.06, 1.02], [1.01, 1.07], 1),
    ([[2]], [], [0.3], [0.3], 1),
    ([[1, 2, 3, -1]], [], [2.5], [0.5, 0.75, 1, 0.25], 1),  # a row, and a column
    ([[1], [2], [0]], [], [0.5, 0.9, 0.1], [1.5], 0.5),
    ([[1, 1], [1, 1], [1, 1]], [], [1, 0.5, 0.5], [1.2, 0.8], 0.5),  # ties
    (FOUR, [], [0, 3, 1, 0.5], [1.5, 1.75, 1.25], 0.5),  # nothing, and all
    (FOUR, [], [3, 1, 1, 0], [2.5, 1.5, 1], 0.5),
    (FOUR, [], [2, 1.5, 0.4, 0.6], [3, 0.8, 0.7], 0.5),  # two rows and a column decide the rest
    (FOUR, [3, 4, 5], [1, 1, 1, 1], [1.5, 0.75, 0.75], 0.5),  # a masked row takes nothing
    (FOUR, [1, 4, 7, 10], [1, 1.5, 1, 1], [2.5, 1, 1], 0.5),  # more than is left: none
    (FOUR, [1, 4, 7, 10], [1, 1.5, 1, 1], [2.5, 0, 2], 0.5),  # a masked column
    (FOUR, [1, 2, 4], [0.5, 1.5, 1, 1], [2, 1, 1], 0.5),  # a row of one cell
    ([[1, 2], [3, 4]], [], [2, 0], [2, 0], 1),  # impossible
    (FOUR, [], [1, 1, 1, 1], [1, 1, 1], 1),
]


def cases():
    for (name, alpha), (scores, off, rows, columns, T) in itertools.product(LINKS, CASES):
        size = len(scores) * len(scores[0])
        yield {
            "matrix": {
                "scores": scores,
                "off": [cell in off for cell in range(size)],
                "rows": rows,
                "columns": columns,
            },
            "T": T,
            "link": name,
            "alpha": alpha,
        }


def answered(case):
    """Add what kofn answers; prices are None where weights between 0 and 1 do not tie them."""
    matrix = case["matrix"]
    x, k, c = (np.array(matrix[name], dtype=float) for name in ("scores", "rows", "columns"))
    mask = ~np.array(matrix["off"]).reshape(x.shape)
    link = links.entmax(case["alpha"]) if case["link"] == "entmax" else case["link"]
    options = {"link": link, "temperature": case["T"], "mask": mask}
    weights = soft_assignment(x, k, c, **options)
    rows, columns = soft_assignment_prices(x, k, c, **options)
    hard = soft_assignment(x, k, c, hard=True, **options)
    none = bool(np.isnan(weights).any())
    tied = not none and _tied(weights, rows, columns)
    decided = tied and _decided(x, columns)
    return {
        **case,
        "answer": {
            "p": None if none else weights.tolist(),
            "alpha": rows.tolist() if tied else None,
            "beta": columns.tolist() if tied else None,
            "hard": hard.tolist() if decided else None,
        },
    }


def _tied(weights, rows, columns):
    """Whether weights between 0 and 1 join all rows and columns that have a price."""
    inside = (weights > 1e-3) & (weights < 1 - 1e-3)
    joined = np.eye(len(inside) + inside.shape[1], dtype=bool)
    joined[: len(inside), len(inside) :] = inside
    joined = joined | joined.T
    for _ in joined:
        joined = joined @ joined
    priced = np.isfinite(np.concatenate([rows, columns]))
    return bool(joined[np.ix_(priced, priced)].all())


def _decided(x, columns):
    """Whether no row's choice is between scores that prices make equal."""
    net = x - np.where(np.isfinite(columns), columns, 0)
    gaps = [np.diff(np.sort(row)) for row in net]
    return all(gap.min(initial=1) > 1e-6 for gap in gaps)


def read():
    return json.loads(FILE.read_text(encoding="utf-8"))


def now(step=1):
    """Answer all cases, or some of them."""
    return [spelled(answered(case)) for case in itertools.islice(cases(), 0, None, step)]


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(each) for each in now())
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
