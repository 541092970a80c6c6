"""Losses of the logarithm of a label's weight: those of all logarithms, which are not computed."""

import math

import pytest
import torch

import kofn
from kofn.links.table import TABLE
from kofn.losses import likelihood, topk_cross_entropy

N, K = 12, 3
LEAST = torch.finfo(torch.float32).min


def rows():
    """Rows by name, whose label is the first entry."""
    torch.manual_seed(0)
    usual, near = torch.randn(5, N), torch.randn(5, N) / 4
    special = {
        "far": usual.sort().values[:1] * 40,
        "hard": usual.sort().values[:1] * 1e6,
        "safe": usual[:1].index_fill(1, torch.tensor([0]), 60.0),
        "lost": usual[:1].index_fill(1, torch.tensor([0]), -60.0),
        "deleted": usual[:1].index_fill(1, torch.tensor([0]), LEAST),
        "masked": usual[:1].index_fill(1, torch.tensor([0]), -math.inf),
        "endless": usual[:1].index_fill(1, torch.tensor([0]), math.inf),
        "unknown": usual[:1].index_fill(1, torch.tensor([1]), math.nan),
        "few": usual[:1].index_fill(1, torch.arange(2, N), -math.inf),
        "none": torch.full((1, N), -math.inf),
    }
    return {"usual": usual, "near": near, **special, "all": torch.cat([near, *special.values()])}


def loss_and_slopes(x, function, name, temperature):
    """The losses of rows, the slopes of their sum, and second ones."""
    x = x.clone().requires_grad_()
    losses = function(x, link=name, temperature=temperature)
    counted = losses[losses.isfinite()].sum() + 0 * x.nan_to_num(0, 0, 0).clamp(-1, 1).sum()
    (slopes,) = torch.autograd.grad(counted, x, retain_graph=True)
    (first,) = torch.autograd.grad(counted, x, create_graph=True)
    (second,) = torch.autograd.grad((first * torch.arange(N)).sum(), x)
    return losses.detach(), slopes, second


def at_labels(x, **options):
    return topk_cross_entropy(
        x, torch.zeros(len(x), dtype=torch.int64), K, reduction="none", **options
    )


def of_all(x, **options):
    """−log p of the first entries; a row without an available entry does not count."""
    losses = -kofn.log_soft_topk(x, K, **options)[:, 0]
    return torch.where((x > LEAST / 2).any(-1) | x.isnan().any(-1), losses, 0.0)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("name", TABLE)
def test_a_label_alone_has_the_logarithm_of_all_entries(name, dtype):
    for kind, x in rows().items():
        for temperature in (1.0, 0.3):
            found, expected = (
                loss_and_slopes(x.to(dtype), function, name, temperature)
                for function in (at_labels, of_all)
            )
            eps = torch.finfo(dtype).eps
            own = dict(rtol=8 * eps, atol=8 * eps, equal_nan=True)
            assert torch.allclose(found[0], expected[0], **own), kind
            size = float(expected[1].abs().nan_to_num().max()) + 1e-30
            near = dict(rtol=0, atol=8 * eps * size, equal_nan=True)
            assert torch.allclose(found[1], expected[1], **near), kind
            assert torch.allclose(found[2], expected[2], rtol=1e-4, atol=1e-5, equal_nan=True), kind


@pytest.mark.parametrize("kind", ["usual", "near", "far", "lost", "safe"])
def test_no_other_logarithm_is_computed(kind, monkeypatch):
    monkeypatch.setattr(likelihood, "LOG_WEIGHTS", None)
    losses, slopes, _ = loss_and_slopes(rows()[kind], at_labels, "logistic", 1.0)
    assert losses.isfinite().all()
    assert slopes.isfinite().all()
