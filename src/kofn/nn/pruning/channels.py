"""Whole output channels of layers: their biases, and layers without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from kofn.nn.pruning.layout import Channels
from kofn.nn.pruning.targets import Target
from kofn.nn.pruning.weight import PrunedWeight
from kofn.streaming.tensors import Cost

TAKEN = nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d
STILL = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU),
    *(nn.Mish, nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.Softsign, nn.Dropout),
)
POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d),
    *(nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
"""Modules that take each channel by itself, and 0 to 0; pools, channels of convolutions alone."""


class PrunedBias(nn.Module):
    """bias ↦ bias·mask, by the mask of the weight of the same layer."""

    def __init__(self, member: PrunedWeight) -> None:
        super().__init__()
        self._of = (member,)  # no submodule: it is the weight's

    def forward(self, bias: Tensor) -> Tensor:
        (member,) = self._of
        if member.mask is None:
            row: Any = member.chooser
            return bias * row.weights(member).to(bias.dtype)
        return torch.where(member.mask, bias, 0.0)


def check_channels(targets: list[Target], sharded: bool) -> None:
    """Raise unless each layer has output channels first, and a bias that can be masked."""
    if sharded:
        raise ValueError(
            'pattern="channel" is for models that are whole in every process; call nn.prune '
            "without fully_shard, or choose another pattern"
        )
    for target in targets:
        module = target.module
        if getattr(module, "transposed", False):
            raise ValueError(
                f'{target.name} is of {type(module).__name__}; pattern="channel" takes linear and '
                "convolution layers that are not transposed: exclude it"
            )
        if module.bias is not None and "bias" not in module._parameters:
            raise ValueError(
                f'the bias of {target.name} has a parametrization; pattern="channel" masks it, '
                "too: exclude the layer, or remove that first"
            )


def check_one_each(rows: list[list[Cost]], kept: list[float]) -> None:
    """Raise where less is kept than one channel of each layer."""
    for costs, most in zip(rows, kept, strict=True):
        least = sum(float(c.max()) if isinstance(c, Tensor) else c for c in costs)
        if least > most:
            raise ValueError(
                f"amount and budget must leave one channel to each of {len(costs)} layers, at a "
                f"cost of {least:g}; got {most:g}"
            )


class Cut(NamedTuple):
    """What is left of a layer."""

    module: nn.Module
    name: str
    inputs: Tensor | None
    outputs: Tensor | None


def cuts_of(
    model: nn.Module, members: list[PrunedWeight], masks_of: Callable[[], dict[str, Tensor]]
) -> list[Cut]:
    """Return what to take out of the layers of a chain whose masks leave channels out.

    Raises:
        ValueError: the model is not such a chain.
    """
    if not isinstance(members[0].layout, Channels):
        raise ValueError('take_out is for pattern="channel"')
    masks = {name: mask.flatten(1)[:, 0] for name, mask in masks_of().items()}
    cuts: list[Cut] = []
    left = None  # which channels of the present values are left
    wide = flat = False  # whether they are of a convolution; whether they have been flattened since
    for name, module in _chain(model, ""):
        if isinstance(module, TAKEN):
            linear = isinstance(module, nn.Linear)
            fits = (flat or not wide) if linear else wide and not flat
            inputs = None if left is None else _inputs(name, module, left, fits, wide and flat)
            left, wide, flat = masks.get(f"{name}.weight"), not linear, False
            if left is not None and left.all():
                left = None
            if getattr(module, "groups", 1) > 1 and not (left is inputs is None):
                raise _refused(name, module, "has groups")
            cuts.append(Cut(module, name, inputs, left))
        elif isinstance(module, nn.Flatten):
            flat = True
            if left is not None and (module.start_dim, module.end_dim) != (1, -1):
                raise _refused(name, module, "flattens other dimensions than (1, -1)")
        elif left is not None and not isinstance(module, (*STILL, *POOLS) if wide else STILL):
            raise _refused(name, module, "does not take 0 to 0 in each channel by itself")
    if cuts and cuts[-1].outputs is not None:
        raise ValueError(
            f"{cuts[-1].name} gives the answer of the model, whose channels cannot be taken out; "
            "exclude it from nn.prune"
        )
    return cuts


def _chain(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        if not name or (not isinstance(module, TAKEN) and any(module.children())):
            what = f"{name} ({type(module).__name__})" if name else type(module).__name__
            raise ValueError(
                f"channels are taken out of torch.nn.Sequential alone, whose layers follow each "
                f"other; got {what}: finalize() without take_out leaves zeros"
            )
        yield name, module
        return
    for key, child in module.named_children():
        yield from _chain(child, f"{name}.{key}" if name else key)


def _inputs(name: str, module: nn.Module, left: Tensor, fits: bool, several: bool) -> Tensor:
    """Return which inputs of a layer are left; `several` may be of one channel."""
    width: int = getattr(module, "in_channels", None) or module.in_features  # type: ignore[assignment]
    times, rest = divmod(width, len(left))
    if rest or not fits or (times > 1 and not several):
        raise _refused(name, module, f"does not take the {len(left)} channels before it")
    return left.repeat_interleave(times)


def _refused(name: str, module: nn.Module, why: str) -> ValueError:
    return ValueError(
        f"{name} ({type(module).__name__}) {why}, so channels before it cannot be taken out; "
        "finalize() without take_out leaves zeros"
    )


@torch.no_grad()
def take_out(cut: Cut) -> None:
    """Make a layer smaller, with new parameters."""
    module, kind = cut.module, "features" if isinstance(cut.module, nn.Linear) else "channels"
    for name, weight in list(module.named_parameters(recurse=False)):
        smaller: Tensor = weight
        if cut.outputs is not None:
            smaller = smaller[cut.outputs]
        if cut.inputs is not None and name == "weight":
            smaller = smaller[:, cut.inputs]
        if smaller is not weight:
            setattr(module, name, nn.Parameter(smaller.clone(), weight.requires_grad))
    weight = module.weight  # type: ignore[assignment]
    setattr(module, f"out_{kind}", weight.shape[0])
    setattr(module, f"in_{kind}", weight.shape[1] * getattr(module, "groups", 1))


def join_bias(member: PrunedWeight) -> None:
    """Give the bias of a layer, if it has one, the mask of its weight."""
    if member.target.module.bias is not None:
        member.with_bias = True
        parametrize.register_parametrization(
            member.target.module, "bias", PrunedBias(member), unsafe=True
        )
