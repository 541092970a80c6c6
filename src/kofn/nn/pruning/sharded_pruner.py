"""The handle of a model under fully_shard that is being pruned, and its backward pass."""

from __future__ import annotations

import weakref
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from kofn.arrays.torch.private import after_backward, sharded_parameters, tree_leaves
from kofn.nn.pruning.choosers import Clock, SharedRow
from kofn.nn.pruning.pruner import Pruner
from kofn.nn.pruning.sharded_weight import ShardedWeight, local, sharded_like
from kofn.nn.pruning.weight import Chooser
from kofn.streaming.tensor_gradient import Threshold
from kofn.streaming.tensors import Over


class ShardedPruner(Pruner):
    """A `Pruner` whose scores and masks are DTensors."""

    members: list[Any]  # of ShardedWeight

    def __init__(self, model: nn.Module, choosers: list[Chooser], clock: Clock, over: Over) -> None:
        super().__init__(model, choosers, clock)
        for hook in self._hooks:
            hook.remove()
        self.over, self.backward = over, Backward(self)
        self._hooks = [
            # Before the hook of fully_shard, which gathers the first weights.
            model.register_forward_pre_hook(self._open, prepend=True),
            model.register_forward_hook(self._close, always_call=True),
        ]
        prepare(model, self.members)
        for member in self.members:
            member.on_gradient = self.backward.reduced

    @torch.compiler.disable
    def _open(self, *_: object) -> None:
        for member in self.members:
            member.attach()
        super()._open()

    @torch.compiler.disable
    def _close(self, module: object = None, inputs: object = None, output: Any = None) -> None:
        if not self.frozen:
            for each in tree_leaves(output):
                if isinstance(each, Tensor) and each.requires_grad:
                    each.register_hook(self.backward.begin)  # type: ignore[no-untyped-call]


class Backward:
    """Turn the gradients of masked shards into gradients of weights and scores.

    The gradient of a masked shard arrives summed over the processes. What it owes to weight, score
    and θ is local. θ's is summed at the end of the pass, by one number per row, and goes to the
    scores from there, with a second number.
    """

    def __init__(self, pruner: ShardedPruner) -> None:
        self.pruner, self.running = pruner, False
        self.before: dict[int, Tensor | None] = {}
        self.scores: dict[int, Tensor] = {}
        self.seen: dict[int, Any] = {}

    def begin(self, *_: object) -> None:
        """Put aside the gradients of earlier passes; what arrives now is of masked shards."""
        if self.running or self.pruner.frozen:
            return
        for place, member in enumerate(self.pruner.members):
            left = self.before.pop(place, None)  # of a pass that has failed
            self.before[place] = member.held.grad if left is None else left
            member.held.grad = None
        self.running, self.scores = True, {}
        for row in self._rows():
            if row.current is not None:
                row.current.theta.grad = None
        # Those that fully_shard has queued, or still will, come first.
        after_backward(lambda: after_backward(self.end))

    @torch.no_grad()
    def reduced(self, member: ShardedWeight, held: DTensor) -> None:
        """Take the gradient of a masked shard."""
        assert held.grad is not None
        gradient, place = local(held.grad), self.pruner.members.index(member)
        if member.mask is not None:
            gradient.masked_fill_(~member.spread(member.mask), 0.0)
            return
        if not self.running:
            self._begin_late(place, held)
        with torch.enable_grad():
            weight = member.original.detach().requires_grad_()
            leaves, theta = [weight], _theta_of(member)
            if member.scores is not None:
                member.leaf = local(member.scores).detach().requires_grad_()
                leaves.append(member.leaf)
            product = member.chooser.apply(member, weight)
            member.leaf = None
        grads = torch.autograd.grad(product, leaves + theta, gradient)
        gradient.copy_(grads[0])
        if member.scores is not None:
            self.scores[place] = grads[1]
        if theta:
            theta[0].grad = grads[-1] if theta[0].grad is None else theta[0].grad + grads[-1]

    def _begin_late(self, place: int, held: DTensor) -> None:
        """Begin where no output of the model was seen: a part of it was called alone."""
        gradient, seen = held.grad, self.seen.get(place)
        if seen is not None and seen() is gradient:
            raise RuntimeError(
                "gradients of two backward passes through a part of the model were added up "
                "without a forward pass of the whole model; call the model, or zero_grad(), in "
                "between"
            )
        held.grad = None
        self.begin()
        held.grad = gradient

    @torch.no_grad()
    def end(self) -> None:
        """Add the scores' gradients through θ, and the gradients of earlier passes."""
        self.running = False
        for row in self._rows():
            self._through_theta(row)
        for place, member in enumerate(self.pruner.members):
            before = self.before.pop(place, None)
            add(member.held, before)
            if member.scores is not None:
                new = self.scores.pop(place, None)
                add(member.scores, None if new is None else member.whole(new))
            if member.held.grad is not None:
                self.seen[place] = weakref.ref(member.held.grad)

    def _through_theta(self, row: SharedRow) -> None:
        at, members = row.current, cast(list[ShardedWeight], row.members)
        if at is None or at.number is None:
            return
        owed = 0.0 if at.theta.grad is None else float(at.theta.grad)
        (owed,) = row.over.sum([owed])
        own = [each.original if each.scores is None else local(each.scores) for each in members]
        leaves = [each.detach().requires_grad_() for each in own]
        with torch.enable_grad():
            scores = [
                member.measure(leaf) if member.scores is None else leaf
                for member, leaf in zip(members, leaves, strict=True)
            ]
            theta = Threshold.apply(row.equation(scores), at.number, *scores)  # type: ignore[no-untyped-call]
        parts = torch.autograd.grad(theta, leaves, torch.full_like(theta, owed))
        for member, part in zip(members, parts, strict=True):
            place = self.pruner.members.index(member)
            if member.scores is None:
                add(member.held, sharded_like(part, member.held))
            else:
                new = self.scores.get(place)
                self.scores[place] = part if new is None else new.add_(part)

    def _rows(self) -> list[SharedRow]:
        return [row for row in self.pruner.choosers if isinstance(row, SharedRow)]


def _theta_of(member: ShardedWeight) -> list[Tensor]:
    row = member.chooser
    if not isinstance(row, SharedRow):
        return []
    if row.current is None:
        row.open()
    assert row.current is not None
    return [row.current.theta]


def add(parameter: Any, gradient: Tensor | None) -> None:
    """Add a DTensor to a parameter's gradient."""
    if gradient is None:
        return
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        local(parameter.grad).add_(local(gradient))


def prepare(model: nn.Module, members: list[ShardedWeight]) -> None:
    """Have fully_shard look for masks of a model that was called before nn.prune.

    It looks itself before the first call.
    """
    ours = {id(member.held) for member in members}
    for each in sharded_parameters(model):
        if id(each.sharded_param) in ours and not hasattr(each, "_extensions_data"):
            each._init_extensions()
