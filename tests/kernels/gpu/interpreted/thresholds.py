"""The way back of thresholds by a GPU's kernel, at a θ that array code knows, too."""

import pytest
import torch

from kofn import links as of_links
from kofn.formulas import pullbacks
from kofn.kernels.gpu.rows import launch
from kofn.links import table
from kofn.rows.given import Given
from kofn.rows.settled import rows_of
from kofn.solver.threshold import solve
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


EVERY = [one for one in LINKS if one != "exponential"]


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("link", [*EVERY, of_links.entmax(2.0), of_links.entmax(1.3)], ids=str)
def test_against_array_code_in_float64_at_the_same_place(link, scale):
    link, count = table.resolve(link).inner, len(ROWS)
    for number in (0.0, 1.0, 2.5, 3.0, 6.0):
        x, k, t = ROWS * scale, torch.full((count,), number), torch.linspace(0.4, 2, count)
        v = torch.linspace(-1, 2, count)
        wide = torch.where(x > torch.finfo(x.dtype).min / 2, x, -torch.inf).double()
        wide = torch.where(x.isnan(), torch.nan, wide)
        rows = rows_of(Given(wide, k.double(), t.double(), link))
        found = solve(rows.scores, rows.k, rows.temperature, rows.link)
        truth = pullbacks.of_thresholds(v.double(), rows, found)
        high = found[0].float()
        low = torch.where(high.isfinite(), (found[0] - high.double()) + found[1], found[1]).float()
        in_x, in_rows = launch.threshold_gradients(x, v, torch.stack((high, low)), k, t, link)
        unit = torch.where(high.abs() < torch.inf, high.abs() / t, 0.0).nan_to_num().max()
        allowed = 1e-5, 1e-4, 1e-5 * (1 + float(unit))
        for answer, wanted, atol in zip((in_x, *in_rows), truth, allowed, strict=True):
            far = wanted.abs() > 1e20  # F′ underflows in float32
            answer, wanted = (torch.where(far, 0.0, each) for each in (answer, wanted))
            torch.testing.assert_close(
                answer.double(), wanted, rtol=1e-4, atol=atol, equal_nan=True
            )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves(dtype):
    x, v, link = ROWS.to(dtype), torch.linspace(-1, 2, len(ROWS)), table.resolve("logistic").inner
    theta = launch.threshold(x, 2.0, 0.7, link)[0]
    known = torch.where(x > torch.finfo(dtype).min / 2, x.float(), -torch.inf)
    known = torch.where(x.isnan(), torch.nan, known)
    found = launch.threshold_gradients(x, v, theta, 2.0, 0.7, link)
    wanted = launch.threshold_gradients(known, v, theta, 2.0, 0.7, link)
    assert torch.equal(found[0].nan_to_num(9), wanted[0].to(dtype).nan_to_num(9))
    assert torch.equal(found[1].nan_to_num(9), wanted[1].nan_to_num(9))
