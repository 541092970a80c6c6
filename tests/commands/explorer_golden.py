"""What kofn answers for the rows on which the explorer's solver is tested.

`python tests/commands/explorer_golden.py` writes data/explorer.json beside it again.
"""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import torch

import kofn
from kofn import KSubset, hard_topk, links, soft_topk, soft_topk_sum, soft_topk_threshold
from kofn.links.table import TABLE

FILE = Path(__file__).parent / "data" / "explorer.json"

SCRIPT = Path(kofn.__file__).parent / "commands" / "explore" / "script" / "links.js"
WRITTEN = re.search(r"FIXED = \{(.*)\}", SCRIPT.read_text(encoding="utf-8"))[1].split(",")
SHOWN = [name for name in TABLE if name in {*map(str.strip, WRITTEN), "entmax"}]
"""The links that the explorer has, which are written for it: a new one may do without."""

LINKS = [
    *((name, 1.5) for name in SHOWN),
    *(("entmax", alpha) for alpha in (1.0, 1.03, 2.0, 3.0)),
]
FIVE = [3.1, 1.0, -2.0, 0.5, 1.7]
FAR = [15.505153, 4.3151116, 3.630773, 6.445712, 7.2184615, 11.226332, 13.861666]
GAP = [10, 9.5, 9.2, -9, -10, -9.5, -9.9]
WIDE = [1000.25, 3.0, 1000.0, -700.0, 999.5, 0.0]
INF = math.inf
# Scores, entries that are masked, k, T.
ROWS = [
    *((FIVE, [], k, T) for k, T in itertools.product((0.3, 1, 2, 2.5, 4, 4.9), (0.1, 1, 10))),
    (FIVE, [], 0, 1),
    (FIVE, [], 5, 1),
    (FIVE, [0, 3], 2, 0.5),  # masks
    (FIVE, [0, 1, 2], 3, 1),  # fewer left than k
    (FIVE, [0, 1, 2, 3, 4], 2, 1),
    ([1, 1, 1, 1], [], 1.5, 1),  # ties
    ([3, 2, 2, 2, 1], [], 2, 0.01),
    ([2, 2, 2, 0], [3], 1, 0.5),
    (GAP, [], 3, 1),  # a gap around θ
    (GAP, [], 3, 0.3),
    (GAP, [], 3, 0.1),
    (GAP, [], 3, 0.01),  # so wide that both tails underflow
    (GAP, [], 2.5, 0.1),
    (FAR, [], 3, 0.3),  # weights next to 1
    (FAR, [], 1, 0.3),
    (WIDE, [], 2, 0.01),  # far scores and a small T
    (WIDE, [], 3.5, 30),
    ([1e6 + 2, 1e6 + 1.25, 1e6], [], 1, 1),
    ([INF, 2, 1, 0], [], 2, 0.5),  # infinite scores
    ([INF, INF, 1, 0], [], 1, 0.5),
    ([INF, -INF, 1, 0], [], 2, 0.5),
    ([-INF, -INF], [], 1, 1),
    ([INF, INF, 1], [], 2.5, 1),
    ([7], [], 0.25, 2),
    ([2, 0], [], 1, 1),
    (list(np.round(np.random.default_rng(0).normal(size=24), 6)), [], 7, 0.2),
    (list(np.round(np.random.default_rng(1).normal(size=24), 6)), [5, 9], 0.01, 1),
]


def cases():
    for number, ((name, alpha), (scores, off, k, T)) in enumerate(itertools.product(LINKS, ROWS)):
        # Every other time the entry on which most depends: the last to be chosen.
        order = sorted(range(len(scores)), key=lambda i, x=scores: -x[i])
        entry = order[max(math.ceil(k), 1) - 1] if number % 2 else number % len(scores)
        yield {
            "scores": [float(x) for x in scores],
            "off": [i in off for i in range(len(scores))],
            "k": float(k),
            "T": float(T),
            "link": name,
            "alpha": alpha,
            "entry": entry,
        }


def answered(case):
    """Add what kofn answers; θ is None where it is not unique."""
    link = links.entmax(case["alpha"]) if case["link"] == "entmax" else case["link"]
    mask = ~torch.tensor(case["off"])
    x, k, T = (
        torch.tensor(case[name], dtype=torch.float64, requires_grad=True)
        for name in ("scores", "k", "T")
    )
    options = {"link": link, "mask": mask}
    weights = soft_topk(x, k, temperature=T, **options)
    row, dk, dT = torch.autograd.grad(weights[case["entry"]], (x, k, T))
    x, k, T = x.detach(), k.detach(), T.detach()
    theta = soft_topk_threshold(x, k, temperature=T, **options)
    smoothed = soft_topk_sum(x, k, temperature=T, **options)
    whole = case["k"].is_integer()
    marginals = KSubset(x / T, int(k), mask=mask).marginals().tolist() if whole else None
    certain = bool(((weights == 0) | (weights == 1)).all())
    unlimited = TABLE[case["link"]].inner._infinite_tails
    unique = unlimited or not (theta.isfinite() and certain)
    return {
        **case,
        "answer": {
            "p": weights.tolist(),
            "theta": float(theta) if unique else None,
            "sum": float(smoothed),
            "hard": hard_topk(x, case["k"], mask=mask).tolist(),
            "marginals": marginals,
            "row": row.tolist(),
            "dk": float(dk),
            "dT": float(dT),
        },
    }


def spelled(value):
    """Write infinities and NaN as words: JSON has no numbers for them."""
    if isinstance(value, dict):
        return {name: spelled(each) for name, each in value.items()}
    if isinstance(value, list):
        return [spelled(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read():
    return json.loads(FILE.read_text(encoding="utf-8"))


def now():
    return [spelled(answered(case)) for case in cases()]


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(each) for each in now())
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
