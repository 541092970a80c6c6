"""Record which experts a model's tokens go to, and replay what an inference engine recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Never

import numpy as np
import torch
from torch import Tensor, nn

from kofn.arrays.names import unknown_keyword
from kofn.nn.routing.following import Following
from kofn.nn.routing.routing import Routing
from kofn.nn.tensors import check_boolean

NAMED = 6
"""How many routers an error names."""


class RoutingRecord:
    """The experts of the tokens that a model saw in a block of `record_routing`."""

    def __init__(self, routers: dict[str, Routing]) -> None:
        self._widths = {name: int(each.k) for name, each in routers.items()}
        self._devices = [each.counts.device for each in routers.values()]
        self._parts: list[list[Tensor]] = [[] for _ in routers]

    @property
    def indices(self) -> Tensor:
        """The experts so far, (tokens, layers, k), int32; −1 for a token that a mask left out.

        Layers are in module order, and tokens in the order in which routers saw them.

        Raises:
            ValueError: the routers saw different numbers of tokens, or differ in k.
        """
        tokens = {
            name: sum(map(len, parts))
            for name, parts in zip(self._widths, self._parts, strict=True)
        }
        for what, values in (("tokens", tokens), ("k", self._widths)):
            if len(set(values.values())) > 1:
                each = ", ".join(f"{name!r}: {value}" for name, value in values.items())
                raise ValueError(f"indices need routers with equal {what}; got {each}")
        place, width = self._devices[0], next(iter(self._widths.values()))
        nothing = torch.empty(0, width, dtype=torch.int32, device=place)
        return torch.stack([torch.cat([nothing, *each]).to(place) for each in self._parts], 1)

    def sequences(self, mask: Tensor) -> list[Tensor]:
        """Return the experts of each sequence, (its tokens, layers, k).

        Args:
            mask: boolean [sequences, length], False for padding, on whichever side it is.

        Raises:
            TypeError, ValueError: a mask of another kind, or of another number of tokens.
        """
        mask, indices = _mask(mask), self.indices
        if mask.numel() != len(indices):
            raise ValueError(
                f"mask must have one entry for each of the {len(indices)} recorded tokens; "
                f"got the shape {tuple(mask.shape)}"
            )
        rows = indices.reshape(*mask.shape, *indices.shape[1:])
        return [row[own] for row, own in zip(rows, mask.to(rows.device), strict=True)]


@contextmanager
def record_routing(model: nn.Module, **others: Never) -> Iterator[RoutingRecord]:
    """Record which experts the tokens of a model go to, in a `with` block.

    Args:
        model: a module whose routers are `TopKRouter` with selection="hard", or those of models
            that `patch_routers` made, likewise; it may be wrapped, as by DistributedDataParallel.

    Returns:
        A context manager, whose record has `indices`, (tokens, layers, k), int32, and
        `sequences(mask)`, the same for each sequence of a padded batch. What a checkpoint runs
        again in a backward pass is not recorded twice.

    Raises:
        ValueError: the model has no router, or one with another selection.

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> model = nn.TopKRouter(16, 8, 2)
        >>> with nn.record_routing(model) as record:
        ...     logits, weights, indices = model(torch.randn(3, 16))
        >>> record.indices.shape, torch.equal(record.indices[:, 0], indices.int())
        (torch.Size([3, 1, 2]), True)
    """
    if others:
        raise unknown_keyword(record_routing, others)
    routers = _routers(model, "nn.record_routing")
    record = RoutingRecord(routers)
    followed = _followed(routers)
    for each, part in zip(followed, record._parts, strict=True):
        each.parts.append(part)
        each.records = True
    try:
        yield record
    finally:
        for each, part in zip(followed, record._parts, strict=True):
            each.parts = [other for other in each.parts if other is not part]
            each.records = bool(each.parts)


@contextmanager
def replay_routing(
    model: nn.Module, indices: Any, mask: Tensor | None = None, **others: Never
) -> Iterator[None]:
    """Send the tokens of a model to experts that were chosen elsewhere, in a `with` block.

    The choice alone is replayed. Logits, gates and their gradients come from the live weights,
    from the logits of all experts. Groups and a balancing bias do not matter to it.

    Args:
        model: as for `record_routing`.
        indices: integers, (tokens, layers, k), as `record_routing` has them and as vLLM returns
            them; layers in module order, tokens in the order in which the routers see them, of all
            calls in the block one after another. Tokens may have several dimensions, as
            (sequences, length). With a mask, a list of such arrays, one per sequence; one that
            lacks the last token, which no engine has computed, leaves it to the router. −1, for all
            k of a token: the router chooses by itself.
        mask: boolean [sequences, length], False for padding, on whichever side it is.

    Balances learn nothing from replayed tokens, and `statistics` counts them apart. A backward pass
    in which a checkpoint runs routers again belongs in the block: it gets the same experts, in
    whichever order calls run again.

    Raises:
        TypeError: the indices are no integers, or the mask is not boolean.
        ValueError: a layer, a token or an expert is too many or too few, also at the end of the
            block; an index out of range, twice for a token, or −1 for some of its k; otherwise as
            for `record_routing`.
        RuntimeError: the model is in a replay; a checkpoint runs a router again after the block.

    Source: Ma et al., "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference
    Routers" (2025).

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> model = nn.TopKRouter(16, 8, 2)
        >>> with nn.replay_routing(model, torch.tensor([[[3, 1]], [[-1, -1]]])):
        ...     logits, weights, indices = model(torch.randn(2, 16))
        >>> indices[0]
        tensor([3, 1])
    """
    if others:
        raise unknown_keyword(replay_routing, others)
    routers = _routers(model, "nn.replay_routing")
    table = _table(indices, mask, routers)
    followed = _followed(routers)
    for each in followed:
        if each.current is not None:
            raise RuntimeError(f"the router {each.name!r} is in another nn.replay_routing")
    for layer, (router, each) in enumerate(zip(routers.values(), followed, strict=True)):
        router._count_replays()
        each.begin(table[:, layer])
    try:
        yield
        for each in followed:
            given = each.current.cursor if each.current is not None else 0
            if given < len(table):
                raise ValueError(
                    f"indices must have the tokens of the block and no others: the router "
                    f"{each.name!r} has been given {given} tokens; got {len(table)}"
                )
    finally:
        for each in followed:
            each.end()


def _routers(model: nn.Module, by: str) -> dict[str, Routing]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got a {type(model).__qualname__}")
    routers = {name: each for name, each in model.named_modules() if isinstance(each, Routing)}
    if not routers:
        raise ValueError(f"{by} needs a model with routers; got a {type(model).__name__} without")
    for name, each in routers.items():
        if each.selection != "hard":
            raise ValueError(
                f"{by} is for routers with selection='hard'; got {each.selection!r} "
                f"for the router {name!r}"
            )
    return routers


def _followed(routers: dict[str, Routing]) -> list[Following]:
    """Return who follows each router, with the name that it has in this model."""
    for name, each in routers.items():
        if each.following is None:
            each.following = Following(name)
        each.following.name = name
    return [each.following for each in routers.values() if each.following is not None]


def _table(indices: Any, mask: Tensor | None, routers: dict[str, Routing]) -> Tensor:
    """Return what was given as one tensor [tokens, layers, k], checked."""
    if mask is None:
        table = _integers(indices, "indices")
        _check_shape(table, "indices", routers)
        table = table.flatten(0, -3)
    else:
        table = _padded(indices, _mask(mask), routers)
    for layer, (name, each) in enumerate(routers.items()):
        _check_layer(table[:, layer], name, each)
    return table


def _padded(indices: Any, mask: Tensor, routers: dict[str, Routing]) -> Tensor:
    """Return the indices of sequences where the mask has their tokens, and −1 elsewhere."""
    if not isinstance(indices, Sequence) or len(indices) != len(mask):
        what = f"{len(indices)} arrays" if isinstance(indices, Sequence) else type(indices).__name__
        raise ValueError(
            f"indices must be a list of one array for each of the {len(mask)} sequences of the "
            f"mask; got {what}"
        )
    rows = []
    for place, (given, own) in enumerate(zip(indices, mask, strict=True)):
        name = f"indices[{place}]"
        choice = _integers(given, name)
        _check_shape(choice, name, routers)
        tokens = int(own.sum())
        if choice.ndim != 3 or not tokens - 1 <= len(choice) <= tokens:
            raise ValueError(
                f"{name} must have the {tokens} tokens of its sequence, or one less; "
                f"got the shape {tuple(choice.shape)}"
            )
        row = choice.new_full((len(own), *choice.shape[1:]), -1)
        row[own.nonzero()[: len(choice), 0].to(row.device)] = choice
        rows.append(row)
    return torch.cat(rows)


def _integers(given: Any, name: str) -> Tensor:
    try:
        tensor = given if isinstance(given, Tensor) else torch.from_numpy(np.array(given))
        kind = str(tensor.dtype)
    except (TypeError, ValueError, RuntimeError):
        tensor, kind = None, type(given).__name__
    if (
        tensor is None
        or tensor.is_floating_point()
        or tensor.is_complex()
        or tensor.dtype == torch.bool
    ):
        raise TypeError(f"{name} must be an array of integers (tokens, layers, k); got {kind}")
    return tensor.detach().to(torch.int32)


def _check_shape(table: Tensor, name: str, routers: dict[str, Routing]) -> None:
    names = list(routers)
    widths = {each: int(router.k) for each, router in routers.items()}
    if table.ndim < 3:
        raise ValueError(f"{name} must have shape (tokens, layers, k); got {tuple(table.shape)}")
    if table.shape[-2] != len(names):
        shown = ", ".join(map(repr, names[:NAMED])) + ", …" * (len(names) > NAMED)
        raise ValueError(
            f"{name} must have a layer for each of the {len(names)} routers ({shown}); "
            f"got {table.shape[-2]} layers"
        )
    for router, k in widths.items():
        if table.shape[-1] != k:
            raise ValueError(
                f"{name} must have k = {k} experts for the router {router!r}; got {table.shape[-1]}"
            )


def _check_layer(table: Tensor, name: str, router: Routing) -> None:
    """Check the experts of a router's tokens, [tokens, k]."""
    least, greatest = table.amin(-1), table.amax(-1)
    ordered = table.sort(-1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(-1) & (greatest >= 0)
    for wrong, what in (
        ((least < -1) | (greatest >= router.num_experts), f"in [-1, {router.num_experts})"),
        ((least < 0) & (greatest >= 0), "−1 for all k experts of a token, or for none"),
        (twice, "k different experts of a token"),
    ):
        if wrong.any():
            token = int(wrong.nonzero()[0, 0])
            raise ValueError(
                f"indices must be {what}; got {table[token].tolist()} for the token {token} of "
                f"the router {name!r}"
            )


def _mask(mask: Any) -> Tensor:
    check_boolean(mask, "False for padding")
    if mask.ndim != 2:
        raise ValueError(f"mask must have shape [sequences, length]; got {tuple(mask.shape)}")
    return mask
