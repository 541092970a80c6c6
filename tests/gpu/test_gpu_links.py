"""Weights, thresholds and gradients of every link, whatever the row, by float64 on the CPU."""

import numpy as np
import pytest
import torch

import kofn
from asked import INTERPRETED, REHEARSED
from truth import DTYPES, GRADIENT, WEIGHTS, array_code, off, off_in_norm

LINKS = (*kofn.links.TABLE, 1.2, 1.8)
LENGTHS = (1, 2, 7, 64, 100, 128, 129, 1000, 1024, 4097, 32_768, 32_769, 131_072)
SMALL = (1, 7, 64, 129, 300) if INTERPRETED else LENGTHS[:9]
KINDS = ("ordinary", "spread", "masked", "tied", "hard")
COUNT = 4  # rows of each kind

each_link = pytest.mark.parametrize("link", LINKS, ids=str)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda one: str(one)[6:])


def link_of(link):
    return link if isinstance(link, str) else kofn.links.entmax(link)


def rows_of(n, dtype, link):
    """(scores, k, temperature): COUNT rows of each kind, the same numbers in every process."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((len(KINDS), COUNT, n))
    x[1] *= 30
    if n > 1:
        deleted = rng.random((COUNT, n)) < 0.4
        deleted[:, 0] = False
        x[2] = np.where(deleted, -np.inf, x[2])
        x[2, 1] = np.where(deleted[1], -1e4, x[2, 1])
    x[3] = np.round(x[3])
    temperature = np.ones((len(KINDS), COUNT))
    temperature[4] = 10.0 ** -rng.integers(1, 5, COUNT)
    x = torch.tensor(x.reshape(-1, n)).to(dtype)
    live = (x > -np.inf).sum(-1).double()
    share = torch.tensor(rng.uniform(0.05, 0.9, len(live)))
    k = (share * live).clamp(max=1.0) if link == "exponential" else share * live
    whole = torch.arange(len(k)) % 2 == 0  # every other k is a whole number
    k = torch.where(whole & (k >= 1), k.floor(), k)
    return x, k.float(), torch.tensor(temperature.reshape(-1)).float()


def pulled(function, x, k, temperature, v):
    leaves = [one.clone().requires_grad_() for one in (x, k, temperature)]
    out = function(*leaves)
    return [one.detach().double().cpu() for one in (out, *torch.autograd.grad(out, leaves, v))]


def is_hard():
    """Which rows are, whose gradients are large or 0, and sensitive to the last digit of θ."""
    return torch.tensor([kind in ("hard",) for kind in KINDS for _ in range(COUNT)])


@each_dtype
@each_link
def test_weights_and_gradients(link, dtype, device):
    """Rows of one length in one call; every row has a k and a T of its own."""
    used = link_of(link)

    def weights(x, k, t):
        return kofn.soft_topk(x, k, link=used, temperature=t)

    wrong = []
    for n in SMALL if REHEARSED else LENGTHS[:: 1 if dtype == torch.float32 else 2]:
        x, k, t = rows_of(n, dtype, link)
        v = torch.randn(x.shape, generator=torch.Generator().manual_seed(n)).to(dtype)
        ours = pulled(weights, *(one.to(device) for one in (x, k, t, v)))
        with array_code():
            exact = pulled(weights, *(one.double() for one in (x, k, t, v)))
        error = off(ours[0], exact[0])
        # What float32 knows of x/T is what bounds a hard row.
        bound = (
            WEIGHTS[dtype]
            + 1.2e-7
            * float((x.double().abs() / t[:, None]).nan_to_num(posinf=0).max())
            * (dtype == torch.float32)
            * 0.25
        )
        if not error <= bound:
            wrong.append(f"n={n}: weights off by {error:.1e}")
        if dtype == torch.float32:
            far = ((ours[0].sum(-1) - k) / k.double().clamp(min=1)).abs().max()
            if not far <= 2e-6:
                wrong.append(f"n={n}: sums off by {float(far):.1e}")
        easy = ~is_hard()
        for name, got, wanted in zip("xkT", ours[1:], exact[1:], strict=True):
            error = (
                off_in_norm(got[easy], wanted[easy])
                if name == "x"
                else off_rows(got[easy], wanted[easy], n)
            )
            if not error <= GRADIENT[dtype]:
                wrong.append(f"n={n}: gradient in {name} off by {error:.1e}")
        if not all(one.isfinite().all() for one in ours[1:]):
            wrong.append(f"n={n}: gradients are not finite")
    assert not wrong


def off_rows(got, wanted, n):
    """The same of one number per row: as a part of what nine rows of ten have."""
    size = wanted.abs() + 0.02 * n**0.5
    return float(((got - wanted).abs() / size).sort().values[int(0.9 * len(got)) - 1])


@each_link
def test_thresholds(link, device):
    used, wrong = link_of(link), []
    for n in SMALL if REHEARSED else LENGTHS:
        x, k, t = rows_of(n, torch.float32, link)
        given = dict(link=used)
        got = kofn.soft_topk_threshold(
            x.to(device), k.to(device), temperature=t.to(device), **given
        )
        with array_code():
            exact = kofn.soft_topk_threshold(x.double(), k, temperature=t.double(), **given)
            # What θ is worth: the weights there. Where the slope is 0, many θ are right.
            p = kofn.soft_topk(x.double(), k, temperature=t.double(), **given)
        got = got.double().cpu()
        unit = t.double() + x.double().abs().nan_to_num(posinf=0).amax(-1) * 1e-6
        # Among masks of −1e4 the last place of θ, in float32, is 1e-3.
        close = (got - exact).abs() <= 1e-4 * unit + 1.2e-7 * exact.abs().nan_to_num(posinf=0)
        alike = (got == exact) | (got.isnan() & exact.isnan())
        flat = (p * (1 - p)).sum(-1) < 1e-3
        if not (close | alike | flat).all():
            wrong.append(
                f"n={n}: {float(((got - exact).abs() / unit)[~(flat | alike)].max()):.1e} T"
            )
    assert not wrong


@each_link
def test_second_derivatives(link, device):
    used, wrong = link_of(link), []
    for n in (2, 33) if REHEARSED else (2, 33, 257):
        x, k, t = (one[: 2 * COUNT] for one in rows_of(n, torch.float32, link))
        v = torch.randn(x.shape, generator=torch.Generator().manual_seed(n))
        w = torch.randn(x.shape, generator=torch.Generator().manual_seed(n + 1))

        def second(x, k, t, v, w):
            x = x.clone().requires_grad_()
            p = kofn.soft_topk(x, k, link=used, temperature=t)
            (first,) = torch.autograd.grad(p, x, v, create_graph=True)
            if not first.requires_grad:
                return torch.zeros_like(x)
            (found,) = torch.autograd.grad(first, x, w, allow_unused=True, materialize_grads=True)
            return found.double().cpu()

        got = second(*(one.to(device) for one in (x, k, t, v, w)))
        with array_code():
            wanted = second(*(one.double() for one in (x, k, t, v, w)))
        error = off_in_norm(got[:COUNT], wanted[:COUNT])
        if not error <= 1e-3:
            wrong.append(f"n={n}: off by {error:.1e}")
    assert not wrong


@each_dtype
def test_a_row_does_not_depend_on_the_others(dtype, device):
    """The same bits alone, among many, and at any place."""
    for n in (7, 64, 1000) if REHEARSED else (7, 64, 128, 1000, 40_000):
        x, k, t = (one.to(device) for one in rows_of(n, dtype, "logistic"))
        together = kofn.soft_topk(x, k, temperature=t)
        again = kofn.soft_topk(
            torch.cat((x.flip(0), x)),
            torch.cat((k.flip(0), k)),
            temperature=torch.cat((t.flip(0), t)),
        )
        assert torch.equal(again[len(x) :], together)
        assert torch.equal(again[: len(x)].flip(0), together)
        alone = kofn.soft_topk(x[3], k[3], temperature=t[3])
        assert torch.equal(alone, together[3])


@each_dtype
def test_layouts(dtype, device):
    """Transposed, sliced and expanded scores; `dim` first; no rows; no memory in common."""
    x = rows_of(64, dtype, "logistic")[0].to(device)
    wanted = kofn.soft_topk(x, 8)
    assert torch.equal(kofn.soft_topk(x.T, 8, dim=0), wanted.T)
    wide = torch.cat((x, x), -1)
    assert torch.equal(kofn.soft_topk(wide[:, 64:], 8), wanted)
    assert torch.equal(kofn.soft_topk(wide.view(-1, 2, 64)[:, 0], 8), wanted)
    assert torch.equal(kofn.soft_topk(x[:1].expand(5, 64), 8), wanted[:1].expand(5, 64))
    assert kofn.soft_topk(x[:0], 8).shape == (0, 64)
    at_odds = torch.empty(x.numel() + 1, dtype=dtype, device=device)[1:].view_as(x).copy_(x)
    assert torch.equal(kofn.soft_topk(at_odds, 8), wanted)


@each_dtype
def test_rows_at_odd_addresses(dtype, device):
    """After others of their shape, whose program reads sixteen bytes at once."""
    for n in (16,) if REHEARSED else (16, 64, 1024):
        x, k, t = (one.to(device) for one in rows_of(n, dtype, "logistic"))
        together = kofn.soft_topk(x, k, temperature=t)
        for start in (1, 0):
            odd = x.new_empty(x.numel() + start)[start:].view_as(x).copy_(x)
            assert torch.equal(kofn.soft_topk(odd, k, temperature=t), together), (n, start)
