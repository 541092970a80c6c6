"""A target or a mask on another device than the scores is refused, before an address is read."""

import inspect

import pytest
import torch

import kofn
from kofn import losses

OF_TARGETS = sorted(
    name
    for name in losses.__all__
    if "target" in inspect.signature(getattr(losses, name)).parameters
)
X = torch.linspace(-1, 1, 24).reshape(3, 8)
TARGETS = {
    "labels": torch.tensor([1, 2, 3]),
    "booleans": torch.eye(8)[:3] > 0,
    "weights": torch.full((3, 8), 0.125),
}
NEEDED = {"k": 2, "ptr": torch.tensor([0, 2, 3])}


def call(name, kind, device):
    function = getattr(losses, name)
    parameters = inspect.signature(function).parameters
    options = {
        each: NEEDED[each]
        for each, parameter in parameters.items()
        if each in NEEDED and (parameter.default is parameter.empty or each == "ptr")
    }
    target = TARGETS[kind]
    if "ptr" in options and kind == "labels":
        target = torch.zeros((2, 8), dtype=torch.int64)
    return function(X.clone().requires_grad_(), target=target.to(device), **options)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", OF_TARGETS)
def test_a_target_is_where_the_scores_are(name, kind):
    try:
        call(name, kind, "cpu")
    except (TypeError, ValueError):
        pytest.skip("the loss takes no such target")
    with pytest.raises(ValueError, match="target is on the device meta, and scores on cpu"):
        call(name, kind, "meta")


@pytest.mark.parametrize("function", [kofn.soft_topk, kofn.hard_topk, kofn.topk_gates, kofn.topk])
def test_a_mask_is_where_the_scores_are(function):
    for _ in range(3):
        with pytest.raises(ValueError, match=r"mask is on the device meta, and (scores|x) on cpu"):
            function(X, 2, mask=TARGETS["booleans"].to("meta"))
