"""Which weights of a model are pruned, and what each of them costs."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from kofn.arrays.checks import shown
from kofn.arrays.dtensor import is_dtensor
from kofn.arrays.torch.private import is_mapped
from kofn.streaming.tensors import Cost, Over

LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


class Target(NamedTuple):
    """A weight to prune."""

    name: str
    module: nn.Module

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.module.weight  # type: ignore[assignment]
        return weight


def targets_of(model: nn.Module, exclude: Iterable[str]) -> list[Target]:
    """Return the weights of all linear and convolution layers but those that are excluded."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    patterns = _patterns(exclude)
    reshard(model)
    targets, used = [], set()
    for path, module in model.named_modules():
        if not isinstance(module, LAYERS):
            continue
        name = f"{path}.weight" if path else "weight"
        out = {each for each in patterns if fnmatch.fnmatchcase(name, each) or each == path}
        used |= out
        if not out:
            targets.append(Target(name, module))
    for each in patterns:
        if each not in used:
            raise ValueError(f"exclude must name linear or convolution layers; got {each!r}")
    if not targets:
        raise ValueError("the model has no linear or convolution layer to prune")
    _check(model, targets)
    return targets


def _patterns(exclude: Any) -> list[str]:
    single = isinstance(exclude, str) or not isinstance(exclude, Iterable)
    patterns = [exclude] if single else list(exclude)
    if not all(isinstance(each, str) for each in patterns):
        raise TypeError(f'exclude must be names, such as ["head", "encoder.*"]; got {exclude!r}')
    return patterns


def _check(model: nn.Module, targets: list[Target]) -> None:
    for target in targets:
        if parametrize.is_parametrized(target.module, "weight"):
            raise ValueError(
                f"{target.name} has a parametrization already; exclude it, or remove that first"
            )
        if "weight" not in target.module._parameters:
            raise ValueError(
                f"{target.name} is not a parameter: something computes it before each call, such "
                "as torch.nn.utils.prune or weight_norm; exclude it, or remove that "
                "parametrization first"
            )
        if isinstance(target.weight, nn.parameter.UninitializedParameter):
            raise ValueError(f"{target.name} is lazy: call the model once before nn.prune")
        if not target.weight.is_floating_point():
            raise TypeError(
                f"{target.name} must have a floating-point dtype; got {target.weight.dtype}"
            )
        if not target.weight.numel():
            raise ValueError(f"{target.name} of shape {tuple(target.weight.shape)} is empty")
    owners: dict[int, list[str]] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(each), []).append(name)
    for target in targets:
        names = owners[id(target.weight)]
        if len(names) > 1:
            raise ValueError(
                f"{' and '.join(names)} are one parameter, which masks cannot share; "
                "exclude all of them"
            )


def refuse_infinite(names: list[str], tensors: list[Tensor], over: Over) -> None:
    """Raise for a NaN or an infinite entry, which would decide over the weights of all layers.

    Every process raises, whichever has it.
    """
    ends = [each.detach().aminmax() if each.numel() else None for each in tensors]
    pairs = [(0.0, 0.0) if each is None else (float(each[0]), float(each[1])) for each in ends]
    wrong = [float(not (math.isfinite(least) and math.isfinite(most))) for least, most in pairs]
    for name, (least, most), is_wrong in zip(names, pairs, over.most(wrong), strict=True):
        if is_wrong:
            here = f"the least is {least:g}, the greatest {most:g}"
            where = here if over.size == 1 else f"in the shard of this process {here}"
            raise ValueError(f"{name} must be finite; {where}")


def refuse_mapped(tensors: Iterable[Tensor]) -> None:
    """Refuse torch.func.vmap over what has to be read as numbers."""
    if any(map(is_mapped, tensors)):
        raise RuntimeError(
            "torch.func.vmap cannot map over models whose masks are soft, because their steps and "
            "thresholds are read one by one; call each model, or freeze() their pruners before"
        )


def refuse_sharded(name: str, tensor: Tensor) -> None:
    """Raise for a parameter that was sharded after nn.prune."""
    if is_dtensor(tensor):
        raise TypeError(
            f"{name} is sharded over processes (a DTensor); call fully_shard before nn.prune, or "
            "finalize() before fully_shard"
        )


def reshard(model: nn.Module) -> None:
    """Let fully_shard put the shards back in the place of gathered weights."""
    for module in model.modules():
        if "FSDPModule" in {kind.__name__ for kind in type(module).__mro__}:
            module.reshard()  # type: ignore[operator]


def costs_of(
    model: nn.Module, targets: list[Target], costs: Any, example_inputs: Any
) -> list[Cost]:
    """Return the cost per weight of each target."""
    if costs is None:
        return [1.0] * len(targets)
    if costs == "bytes":
        return [float(target.weight.element_size()) for target in targets]
    if costs == "flops":
        return _flops(model, targets, example_inputs)
    if not callable(costs):
        raise TypeError(
            f'costs must be None, "flops", "bytes" or a function of (name, module); got {costs!r}'
        )
    return [_checked(target, costs(target.name, target.module)) for target in targets]


def _checked(target: Target, given: Any) -> Cost:
    where = f"the cost of {target.name}"
    cost: Cost
    if isinstance(given, Tensor) and given.ndim:
        if given.shape != target.weight.shape:
            raise ValueError(
                f"{where} must be a number or have the shape {tuple(target.weight.shape)}; "
                f"got {tuple(given.shape)}"
            )
        ends = (given.min(), given.max())
        low, high = (
            float(each.full_tensor() if is_dtensor(each) else each)  # type: ignore[attr-defined]
            for each in ends
        )
        cost = given.detach().to(target.weight.device, copy=True)
    else:
        if not isinstance(given, (Real, Tensor)):
            raise TypeError(f"{where} must be a number or a tensor; got {given!r}")
        low = high = cost = float(given)
    if not (low > 0 and high < math.inf):
        raise ValueError(f"{where} must be finite and > 0; got {high if low > 0 else low}")
    return cost


def _flops(model: nn.Module, targets: list[Target], example_inputs: Any) -> list[Cost]:
    """Return 2 operations per use of a weight for one example, counted in one forward pass."""
    if example_inputs is None:
        raise ValueError(
            'costs="flops" needs example_inputs, a batch to call the model with, to see how often '
            "each weight is used"
        )
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    examples = _examples_in(inputs)
    uses = {id(target.module): 0.0 for target in targets}

    def count(module: Any, given: tuple[Any, ...], output: Tensor) -> None:
        transposed = getattr(module, "transposed", False)
        seen = given[0] if transposed else output
        uses[id(module)] += seen.numel() / (len(module.weight) * examples)

    hooks = [target.module.register_forward_hook(count) for target in targets]
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            model(*inputs)
    except Exception as error:
        given = ", ".join(map(_shape_or_type, inputs))
        raise ValueError(
            "example_inputs must be what the model takes, a batch or a tuple of arguments; called "
            f"with {given} it raised {type(error).__name__}: {error}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    for target in targets:
        if not uses[id(target.module)]:
            raise ValueError(f"{target.name} is not used by the example; exclude it")
    return [2 * uses[id(target.module)] for target in targets]


def _examples_in(inputs: tuple[Any, ...]) -> int:
    """Return the number of examples in the first argument of a call."""
    try:
        examples = len(inputs[0])
    except (TypeError, IndexError):  # a number, None, a tensor without dimensions, nothing
        examples = 0
    if not examples:
        given = _shape_or_type(inputs[0]) if inputs else "()"
        raise ValueError(
            "example_inputs must be a batch of one example or more, or a tuple of arguments whose "
            f"first is one; got {given}"
        )
    return examples


def _shape_or_type(given: Any) -> str:
    if isinstance(given, Tensor):
        return f"a tensor of shape {tuple(given.shape)} and dtype {given.dtype}"
    return shown(given)


CostFunction = Callable[[str, nn.Module], float | Tensor]
