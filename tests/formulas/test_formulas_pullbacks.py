"""Cotangents in closed form, and those that a GPU takes in their place."""

import torch

from kofn.formulas import pullbacks
from kofn.links import table
from kofn.rows.given import Given
from kofn.rows.settled import rows_of
from kofn.solver.threshold import solve
from pairs import pairwise
from support import LINKS

ROWS = torch.tensor(
    [
        [0.3, -1.0, 2.0, 0.25, -0.5, 1.5],
        [0.3, -1.0, torch.inf, 0.25, -0.5, 1.5],
        [0.3, -1.0, -torch.inf, 0.25, torch.finfo(torch.float32).min, 1.5],
        [1.0] * 6,
        [0.3, -1.0, torch.nan, 0.25, -torch.inf, torch.inf],
        [-torch.inf] * 6,
        [0.0, 1.0, 2.0, 3e4, 4e4, 5e4],
    ]
)


@pairwise(
    scale=[1.0, 30.0, 1e4],
    k=[0.0, 1.0, 2.5, 3.0, 6.0],
    link=[one for one in LINKS if one != "exponential"],
)
def test_what_a_gpu_takes_for_thresholds(link, k, scale):
    """Against array code in float64, at the same θ."""
    link, count = table.TABLE[link].inner, len(ROWS)
    x, k, t = ROWS * scale, torch.full((count,), k), torch.linspace(0.4, 2, count)
    v = torch.linspace(-1, 2, count)
    given = Given(x, k, t, link)
    x = torch.where(x > torch.finfo(x.dtype).min / 2, x, -torch.inf).double()
    x = torch.where(given.scores.isnan(), torch.nan, x)
    rows = rows_of(Given(x, k.double(), t.double(), link))
    found = solve(rows.scores, rows.k, rows.temperature, rows.link)
    truth = pullbacks.of_thresholds(v.double(), rows, found)
    high = found[0].float()
    low = torch.where(high.isfinite(), (found[0] - high.double()) + found[1], found[1]).float()
    answers = pullbacks.of_wide_thresholds(v, given, (high, low))
    unit = torch.where(high.abs() < torch.inf, high.abs() / t, 0.0).nan_to_num().max()
    for answer, wanted, atol in zip(answers, truth, (1e-5, 1e-4, 1e-5 * (1 + unit)), strict=True):
        far = wanted.abs() > 1e20  # F′ underflows in float32
        answer, wanted = (torch.where(far, 0.0, each) for each in (answer, wanted))
        torch.testing.assert_close(
            answer.double(), wanted, rtol=1e-4, atol=float(atol), equal_nan=True
        )
    number = given._replace(temperature=0.7)
    in_x, _, none = pullbacks.of_wide_thresholds(v, number, (high, low))
    assert none is None
    each = given._replace(temperature=torch.full((count,), 0.7))
    torch.testing.assert_close(
        in_x,
        pullbacks.of_wide_thresholds(v, each, (high, low))[0],
        rtol=1e-4,
        atol=1e-6,
        equal_nan=True,
    )
