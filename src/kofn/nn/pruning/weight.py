"""The parametrization of one pruned weight: its scores, or its fixed mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import parametrize

from kofn.nn.pruning.layout import Groups, Layout
from kofn.nn.pruning.targets import Target, refuse_sharded
from kofn.streaming.tensors import Cost, wide

Measure = Callable[[Tensor], Tensor]
"""A weight, to its scores."""


class Chooser(Protocol):
    """A choice among the weights of one or more tensors, its members."""

    members: list[PrunedWeight]

    def apply(self, member: PrunedWeight, weight: Tensor) -> Tensor:
        """Return the weight times its soft mask."""

    def choose(self) -> list[Tensor]:
        """Return the hard masks of all members, one flag per score."""

    def open(self) -> None:
        """Prepare a forward pass of the whole model."""

    def close(self) -> None:
        """Forget what `open` prepared."""


class PrunedWeight(nn.Module):
    """weight ↦ weight·mask, for torch.nn.utils.parametrize.

    `scores` are a parameter, or None if they are computed from the weight by `measure`. `mask` is
    None until it is fixed; then nothing else counts. It is saved with the model.
    """

    chooser: Chooser
    mask: Tensor | None
    steps: Tensor
    trail: Tensor
    with_bias: bool = False
    """Whether the bias of the layer has the same mask, as output channels have."""

    def __init__(
        self,
        target: Target,
        layout: Layout,
        cost: Cost,
        measure: Measure,
        learned: bool,
    ) -> None:
        super().__init__()
        self.target, self.layout, self.cost, self.measure = target, layout, cost, measure
        self.order = tuple(target.module._parameters)
        self.register_buffer("mask", None)
        self.scores: nn.Parameter | None = None
        if learned:
            with torch.no_grad():
                self.scores = nn.Parameter(wide(measure(target.weight)))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight with its mask."""
        if self.mask is None:
            return self.chooser.apply(self, weight)
        masked = torch.where(self.spread(self.mask), weight, 0.0)
        if self.scores is not None and distributed.is_available() and distributed.is_initialized():
            # DistributedDataParallel waits for a gradient of every parameter; this one is 0.
            return masked + (0.0 * self.scores.flatten()[0]).to(masked.dtype)
        return masked

    def spread(self, mask: Tensor) -> Tensor:
        """Return a mask with a flag per score as one with a flag per weight."""
        if isinstance(self.layout, Groups):
            return mask
        return self.layout.spread(mask, self.original.shape)

    def score(self, weight: Tensor) -> Tensor:
        """Return one score per weight, per block or per channel."""
        if self.scores is None:
            return self.measure(weight)
        refuse_sharded(f"the scores of {self.target.name}", self.scores)
        return self.scores

    @property
    def original(self) -> Tensor:
        """Return the weight without its mask."""
        weight: Tensor = self.target.module.parametrizations["weight"].original  # type: ignore[index,union-attr]
        return weight

    @property
    def version(self) -> int:
        """Return a number that changes when the weight does."""
        return self.original._version

    def shown(self, mask: Tensor) -> Tensor:
        """Return a mask with a flag per score as the user sees it, with a flag per weight."""
        return self.spread(mask)

    def freeze(self, mask: Tensor) -> None:
        """Keep this mask from now on."""
        self.mask = mask

    @torch.no_grad()
    def finalize(self) -> None:
        """Set the weights that the fixed mask leaves out to 0, and leave the layer as it was."""
        assert self.mask is not None
        weight, module = self.original, self.target.module
        weight.masked_fill_(~self.spread(self.mask), 0.0)
        own = {"weight": weight}
        if self.with_bias:
            own["bias"] = module.parametrizations["bias"].original  # type: ignore[index,union-attr]
            own["bias"].masked_fill_(~self.mask, 0.0)
        if len(module.parametrizations) == len(own):  # type: ignore[arg-type]
            # PyTorch's function takes the property off the class, which copies of the model share.
            del module.parametrizations
            module.__class__ = type(module).__bases__[0]
            for name, parameter in own.items():
                module.register_parameter(name, parameter)  # type: ignore[arg-type]
        else:
            for name in own:
                parametrize.remove_parametrizations(module, name, leave_parametrized=False)
        for name in self.order:  # the weight would come last
            module._parameters[name] = module._parameters.pop(name)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take a mask along, or its absence: a state may be from before it was fixed or after."""
        saved = state.get(f"{prefix}mask")
        device = self.original.device
        self.mask = None if saved is None else torch.empty_like(saved, device=device)
        super()._load_from_state_dict(state, prefix, *rest)

    def extra_repr(self) -> str:
        about = "learned" if self.scores is not None else "of the weight"
        return f"scores={about}, mask={'soft' if self.mask is None else 'fixed'}"


def measure_by(scores: object, name: str, layout: Layout, scale: float) -> Measure:
    """Return the function weight ↦ scores: scaled magnitudes, or the caller's."""
    return _Measure(scores if callable(scores) else None, name, layout, scale)


class _Measure:
    """|weight|·scale, or the caller's function, averaged over each choice; it can be copied."""

    def __init__(
        self, function: Callable[..., Tensor] | None, name: str, layout: Layout, scale: float
    ) -> None:
        self.function, self.name, self.layout, self.scale = function, name, layout, scale

    def __call__(self, weight: Tensor) -> Tensor:
        if self.function is None:
            values = weight.abs() * self.scale
        else:
            values = self.function(self.name, weight)
            if not isinstance(values, Tensor) or values.shape != weight.shape:
                raise ValueError(
                    f"scores(name, weight) must return a tensor of the weight's shape, here "
                    f"{tuple(weight.shape)} for {self.name}; got "
                    f"{tuple(values.shape) if isinstance(values, Tensor) else values!r}"
                )
        if isinstance(self.layout, Groups):
            return values
        means = self.layout.summed(values)
        return means if means is values else means / (values.numel() // means.numel())
