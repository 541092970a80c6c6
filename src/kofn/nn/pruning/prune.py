"""`prune`: learn which weights of a model to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Never

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from kofn.arrays.checks import check_choice
from kofn.arrays.dtensor import is_dtensor
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import LinkName
from kofn.links import Link, logistic, table
from kofn.nn.pruning.amounts import kept_of, totals_of
from kofn.nn.pruning.channels import check_channels, check_one_each, join_bias
from kofn.nn.pruning.choosers import Clock, GroupChoice, SharedRow
from kofn.nn.pruning.layout import Blocks, Channels, Groups, Layout, layout_of
from kofn.nn.pruning.pruner import Pruner
from kofn.nn.pruning.schedule import PruningSchedule, schedule_of
from kofn.nn.pruning.targets import CostFunction, Target, costs_of, refuse_infinite, targets_of
from kofn.nn.pruning.weight import Chooser, Measure, PrunedWeight, measure_by
from kofn.streaming.tensors import ALONE, Cost, Over

if TYPE_CHECKING:
    from kofn.nn.pruning.sharded import Shards

ScoreFunction = Callable[[str, Tensor], Tensor]

START = 0.01
"""Learned scores start at the magnitudes, scaled to this root mean square in each tensor."""


def prune(
    model: nn.Module,
    amount: float | None = None,
    *,
    schedule: int | PruningSchedule,
    budget: float | None = None,
    scope: Literal["global", "layer"] = "global",
    costs: Literal["flops", "bytes"] | CostFunction | None = None,
    pattern: str | tuple[int, int] | None = None,
    choice: Literal["soft_topk", "k_subset", "k_subset_sample"] = "soft_topk",
    link: LinkName | Link = "logistic",
    scores: Literal["learned", "magnitude"] | Callable[[str, Tensor], Tensor] = "learned",
    exclude: Iterable[str] = (),
    example_inputs: Any = None,
    **others: Never,
) -> Pruner:
    """Give each weight of a model a soft mask, F((score − θc)/T), that becomes hard in training.

    θ is such that the masks sum to the budget, Σ c·mask = budget, over all weights at once.
    The budget falls from everything to the wanted one while T falls. Call it before the optimizer
    is made, and after fully_shard if the model is sharded:

        pruner = nn.prune(model, 0.95, schedule=steps)
        groups = [{"params": pruner.other_parameters()}, pruner.score_parameters()]
        optimizer = torch.optim.Adam(groups, lr=1e-3)
        for step in range(steps):
            ...
            optimizer.step()
            pruner.step(optimizer)
        pruner.finalize()

    Args:
        model: its linear and convolution layers are pruned, biases are not.
        amount: the removed part, as in torch.nn.utils.prune: a share in [0, 1] as a float, or a
            number of weights as an integer. With `costs`, a share or a part of the total cost.
        budget: the kept part instead: a number of weights, an integer; with `costs`, a cost. Give
            one of the two; none for pattern="n:m".
        schedule: the number of training steps, or a `PruningSchedule`.
        scope: "global", one choice over all layers; "layer", the same amount in each.
        costs: what keeping a weight costs: None, 1; "flops", 2 per use for one example, counted
            by a call with `example_inputs`; "bytes", the size of its dtype; or a function
            (name, module) → number or tensor of the weight's shape. For scope="global".
        pattern: None; "2:4" or any "n:m", n of every m neighbours along the last dimension; the
            shape (rows, columns) of blocks that are kept or removed together; or "channel", whole
            output channels with their biases, at least one of each layer. Then amount and budget
            are numbers of channels; exclude the layer that gives the answer. Convolutions count
            as matrices [out, in·kernel].
        choice: for "n:m": "soft_topk"; "k_subset", the exact marginals of the distribution over
            the subsets of size n; "k_subset_sample", a sample of it with their gradient.
        link: F, as for `soft_topk`; the other choices have none.
        scores: "learned", one parameter per weight, which starts at its scaled magnitude;
            "magnitude", the present magnitude; or a function (name, weight) → scores of the same
            shape, DTensors both if the model is sharded. Blocks and channels have their mean.
        exclude: names of layers or weights that are left alone, such as "head" or "encoder.*".
        example_inputs: a batch, or a tuple of arguments; for costs="flops".

    Returns:
        A `Pruner`.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range; a weight is
            shared, lazy, not finite or has a parametrization; a pattern does not fit, or not the
            shards of each process.

    Source: Sander et al. (2023) and Tai et al., "Spartan" (2022), for soft top-k masks; SMART
    (arXiv 2403.19969) for separate scores with one threshold; Ahmed et al., "SIMPLE" (2023), for
    the gradient of samples.

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2))
        >>> pruner = nn.prune(model, 0.75, schedule=100)
        >>> pruner
        Pruner(2 weights, kept=40 of 160, step 0 of 100)
        >>> sum(int((layer.weight != 0).sum()) for layer in pruner.finalize())
        40
    """
    if others:
        raise unknown_keyword(prune, others)
    check_choice("scope", scope, ("global", "layer"))
    check_choice("choice", choice, ("soft_topk", "k_subset", "k_subset_sample"))
    if not callable(scores):
        check_choice("scores", scores, ("learned", "magnitude"))
    link, layout = _fixed(table.resolve(link)), layout_of(pattern)
    if choice != "soft_topk" and not isinstance(layout, Groups):
        raise ValueError(f'choice={choice!r} needs pattern="n:m"')
    if choice != "soft_topk" and link is not logistic:
        raise ValueError(f"choice={choice!r} has no link; leave link out, or use 'soft_topk'")
    schedule = schedule_of(schedule)
    targets = targets_of(model, exclude)
    for target in targets:
        layout.check(target.name, target.weight.shape)
    if isinstance(layout, Channels):
        check_channels(targets, any(is_dtensor(target.weight) for target in targets))
    way = _way(model, targets, layout, choice)
    refuse_infinite([each.name for each in targets], way.weights(targets), way.over)
    prices = way.costs(targets, _prices(model, targets, costs, example_inputs, scope, layout))
    prices = [
        _per_score(price, layout, target.weight, costs is not None)
        for price, target in zip(prices, targets, strict=True)
    ]
    totals = totals_of(targets, prices, layout, way.over)
    kept = kept_of(amount, budget, totals, layout, scope, costs is not None)
    together = [prices] if scope == "global" else [[price] for price in prices]
    if isinstance(layout, Channels):
        check_one_each(together, kept)
    measures = _measures(targets, layout, scores, way)
    members = [
        way.member(target, layout, price, measure, scores == "learned")
        for target, price, measure in zip(targets, prices, measures, strict=True)
    ]
    for member in members:
        way.join(member)  # type: ignore[arg-type]  # of this way
        if isinstance(layout, Channels):
            join_bias(member)
    clock = Clock(schedule, members[0])
    steps = torch.zeros((), dtype=torch.int64, device=members[0].original.device)
    members[0].register_buffer("steps", steps)
    choosers: list[Chooser]
    if isinstance(layout, Groups):
        choosers = [GroupChoice(member, choice, link, clock) for member in members]
    else:
        rows = [members] if scope == "global" else [[member] for member in members]
        sums = [sum(totals)] if scope == "global" else totals
        choosers = [
            way.row(row, total, most, link, clock)
            for row, total, most in zip(rows, sums, kept, strict=True)
        ]
    for chooser in choosers:
        for member in chooser.members:
            member.chooser = chooser
    return way.pruner(model, choosers, clock)


class _Whole:
    """The pruning of a model whose weights are whole in this process."""

    over: Over = ALONE
    member, row, pruner = PrunedWeight, SharedRow, Pruner

    @staticmethod
    def weights(targets: list[Target]) -> list[Tensor]:
        return [target.weight for target in targets]

    @staticmethod
    def costs(targets: list[Target], prices: list[Cost]) -> list[Cost]:
        return prices

    @staticmethod
    def scores(target: Target, function: ScoreFunction) -> ScoreFunction:
        return function

    @staticmethod
    def join(member: PrunedWeight) -> None:
        parametrize.register_parametrization(member.target.module, "weight", member, unsafe=True)


def _way(
    model: nn.Module, targets: list[Target], layout: Layout, choice: str
) -> type[_Whole] | Shards:
    """Return how the model is pruned: `_Whole`, or `sharded.Shards` under fully_shard."""
    if not any(is_dtensor(target.weight) for target in targets):
        return _Whole
    from kofn.nn.pruning import sharded  # it imports torch.distributed

    return sharded.Shards(model, targets, layout, choice)


def _fixed(link: Link) -> Link:
    if isinstance(link.alpha, Tensor):
        raise ValueError("the alpha of link must be a number; nn.prune does not learn it")
    return link


def _prices(
    model: nn.Module, targets: list[Target], costs: Any, inputs: Any, scope: str, layout: Layout
) -> list[Cost]:
    """Return the cost per weight of each tensor."""
    if inputs is not None and costs != "flops":
        raise ValueError(f'example_inputs are for costs="flops"; got costs={costs!r}')
    if costs is None:
        return [1.0] * len(targets)
    if scope == "layer" or isinstance(layout, Groups):
        raise ValueError('costs need scope="global" and single weights or blocks')
    return list(costs_of(model, targets, costs, inputs))


def _per_score(cost: Cost, layout: Layout, weight: Tensor, has_costs: bool) -> Cost:
    if isinstance(layout, Groups) or (isinstance(layout, Channels) and not has_costs):
        return 1.0
    if isinstance(cost, Tensor):
        return layout.summed(cost)
    return cost * (layout.size if isinstance(layout, Blocks) else weight[0].numel())


def _measures(
    targets: list[Target], layout: Layout, scores: str | ScoreFunction, way: type[_Whole] | Shards
) -> list[Measure]:
    """Return weight ↦ scores for each tensor: learned ones have a scale for each."""
    with torch.no_grad():
        squares = [float(weight.float().norm()) ** 2 for weight in way.weights(targets)]
    norms = [square**0.5 for square in way.over.sum(squares)]
    sizes = [target.weight.numel() for target in targets]
    whole = (sum(norm * norm for norm in norms) / sum(sizes)) ** 0.5
    measures = []
    for target, norm, size in zip(targets, norms, sizes, strict=True):
        own = START / (norm / size**0.5) if norm else 1.0
        scale = own if scores == "learned" else 1 / whole if whole else 1.0
        function = way.scores(target, scores) if callable(scores) else scores
        measures.append(measure_by(function, target.name, layout, scale))
    return measures
