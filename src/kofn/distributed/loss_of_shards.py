"""The way of every loss: a shard or a DTensor and its target in, a reduced loss out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kofn import links
from kofn.adapters.torch_shards import answer
from kofn.arrays.checks import check_dim, check_same_kind, shown
from kofn.distributed import loss_targets
from kofn.distributed.early import checked_on_all_ranks, groups_of, link_of_loss
from kofn.distributed.loss_parts import reduced, weighted
from kofn.distributed.loss_targets import Options
from kofn.distributed.over_shards import array_alpha, with_alpha
from kofn.distributed.placements import Layout, _layout_of, refuse_group
from kofn.formulas.answers import require_integral
from kofn.inputs.given import ONE
from kofn.links import Link
from kofn.losses.targets import check_reduction
from kofn.operations.losses import GAP, LIKELIHOOD, SMOOTHED_LIKELIHOOD
from kofn.shards import given
from kofn.shards.header import Arguments, handshake
from kofn.shards.ranks import ranks_of


def loss(
    name: str,
    scores: Any,
    target: Any,
    group: Any,
    link: Any,
    temperature: Any,
    dim: int,
    mask: Any,
    reduction: str,
    options: tuple[Any, ...],
) -> Any:
    """Return a reduced Fenchel–Young loss, or cross-entropy if there is no link."""
    arguments = (scores, target, group, link, temperature, dim, mask, reduction, options)
    if torch.compiler.is_compiling():
        from kofn.arrays.torch.untraced import outside_of_graphs  # imports the compiler

        return outside_of_graphs(loss, name, *arguments)
    if not hasattr(scores, "device_mesh"):

        def own() -> Link | None:
            _check(name, scores, target, reduction)
            return link_of_loss(link)

        found = _per_row(
            name,
            scores,
            target,
            (group,),
            checked_on_all_ranks(name, scores, group, dim, own),
            temperature,
            dim,
            mask,
            Options(*options),
            reduction,
        )
        return reduced(*found, reduction)
    dim = check_dim(dim, scores.ndim)
    whole, layout = _layout_of(name, scores, dim)

    def of_rows() -> tuple[Tensor, Tensor]:
        return _of_dtensor(name, whole, layout, *arguments[1:])

    batch = groups_of(whole, dim, of_rows=False)
    if not batch:
        value, weight = of_rows()
    else:  # the other rows' ranks wait for the sum over all rows
        ranks = ranks_of(batch, name, layout.mesh)
        value, weight = handshake(
            ranks, scores.to_local(), of_rows, lambda _: Arguments(str(reduction))
        )
    if reduction == "none":
        return layout.restored(value, True)
    return reduced(layout.of_all_rows(value), layout.of_all_rows(weight), reduction)


def _check(name: str, scores: Any, target: Any, reduction: Any) -> None:
    check_reduction(reduction)
    if not isinstance(scores, Tensor):
        raise TypeError(f"{name} takes a torch.Tensor; got {shown(scores)}")
    check_same_kind("target", target, scores)


def _of_dtensor(
    name: str,
    scores: Any,
    layout: Layout,
    target: Any,
    group: Any,
    link: Any,
    temperature: Any,
    dim: int,
    mask: Any,
    reduction: str,
    options: tuple[Any, ...],
) -> tuple[Tensor, Tensor]:
    """Return what `_per_row` does of this process's rows."""
    dim, made = layout.dim, Options(*options)

    def parts() -> tuple[Any, ...]:
        refuse_group(name, group)
        _check(name, scores, target, reduction)
        own = link_of_loss(link)
        if own is not None:
            own = with_alpha(own, layout.rows("alpha", array_alpha(own)))
        return (
            _target_of(target, layout),
            layout.groups,
            own,
            layout.rows("temperature", temperature),
            dim,
            layout.entries("mask", mask),
            made._replace(weight=_weight_of(made.weight, layout)),
            reduction,
        )

    others = checked_on_all_ranks(name, scores, None, dim, parts)
    return _per_row(name, scores.to_local(grad_placements=layout.placements), *others)


def _per_row(
    name: str,
    scores: Tensor,
    target: Tensor,
    groups: Sequence[Any],
    link: Link | None,
    temperature: Any,
    dim: int,
    mask: Any,
    options: Options,
    reduction: str,
) -> tuple[Tensor, Tensor]:
    """Return the losses of rows, and what each counts in the mean."""
    kept: list[loss_targets.Given] = []

    def others(shards: given.Shards) -> Any:
        require_integral(own, shards.scores)
        kept[:] = [loss_targets.checked(target, scores, shards, options)]
        return kept[0].arguments(reduction)

    own = links.exponential if link is None else link
    shards = given.shards(name, scores, ONE, own, temperature, dim, mask, groups, others=others)
    found = loss_targets.spread(kept[0], shards)
    if link is None:
        if found.by_class is not None and options.label_smoothing:
            value = answer(SMOOTHED_LIKELIHOOD, shards, found.weighed, found.by_class == 0)
        else:
            value = answer(LIKELIHOOD, shards, found.weighed)
    else:
        value = answer(GAP, shards._replace(k=found.number), found.each)
    return weighted(value, found, link is None)


def _target_of(target: Any, layout: Layout) -> Tensor:
    """Return this process's part of indices or of weights."""
    if tuple(target.shape) == layout.batch:
        found: Tensor = layout.rows("target", target)
        return found
    if tuple(target.shape) != tuple(layout.shape):
        raise ValueError(
            f"target must have the shape of scores, {tuple(layout.shape)}, for weights, or without "
            f"dim, {layout.batch}, for indices; got {tuple(target.shape)}"
        )
    whole: Tensor = layout.entries("target", target)
    return whole


def _weight_of(weight: Any, layout: Layout) -> Any:
    """Return this process's part of numbers per class."""
    if weight is None:
        return None
    n = layout.shape[layout.dim]
    if tuple(weight.shape) != (n,):
        raise ValueError(
            f"weight must have one number for each of the entries along dim, {(n,)}; "
            f"got the shape {tuple(weight.shape)}"
        )
    return layout.classes(weight)
