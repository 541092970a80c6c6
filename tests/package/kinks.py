"""Places where an answer has a kink, for every example call; differences on each side of one.

What a derivative may be there is in `wrong_at`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import kofn
import support
from calls import BOOLEAN, FLOAT, Call

STEP, NEAR = 1e-5, 1e-7
WHOLE: dict[str, Any] = {"k": [2.0, 1, 3], "budget": [2.0, 1, 3], "scale": [1.0, 2, 1]}
WHOLE |= {"temperature": [1.0], "costs": [1.0], "alpha": [1.5, 2, 1], "margin": [0.0]}
WHOLE_MARGINS = (
    "whole numbers",
    "whole numbers of other scores",
    "halves",
    "a mask",
    "closed rows",
)
CLOSED = {"k": [0.0, 4, 5], "budget": [0.0, 5, 7]}
"""Nothing or everything is chosen: the derivative in these is 0, docs/behaviour.md."""


def like(array: np.ndarray, values: Any) -> np.ndarray:
    return np.resize(np.asarray(values, float), array.shape)


def kinks(call: Call) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """(name, arrays to take in place of the call's own)."""
    x, given = call.arguments[call.first], call.arguments
    floats = [name for name in call.arrays if call.kind_of(name) == FLOAT]
    if call.kind_of(call.first) != FLOAT:
        return

    def of(values: dict[str, Any]) -> dict[str, np.ndarray]:
        return {name: like(given[name], values[name]) for name in floats[1:] if name in values}

    whole = of(WHOLE)
    if "capacity" in given:
        whole |= {"k": like(given["k"], [2, 1, 1]), "capacity": like(given["capacity"], [1])}
    yield "ties", {call.first: np.round(x)}
    yield "whole numbers", {call.first: np.round(x), **whole}
    yield "whole numbers of other scores", whole
    yield "halves", {call.first: np.round(2 * x) / 2, **whole}
    yield "equal scores", {call.first: like(x, [0.5])}
    if of(CLOSED) and "capacity" not in given:
        yield "closed rows", {**whole, **of(CLOSED)}
    if "capacity" in given:
        closed = {
            "k": like(given["k"], [4, 1, 1]),
            "capacity": like(given["capacity"], [2, 1, 1, 2]),
        }
        yield "closed rows", {**whole, **closed}
    if "q" in floats:
        for q in ([0.0, 0.5], [0.25, 1.0], [0.75, 1 / 3]):
            yield f"quantiles {q}", {"q": np.array(q)}
    if call.first in ("scores", "x"):
        infinite = x.copy()
        infinite.reshape(-1)[[1, -2]] = -np.inf, np.inf
        yield "infinite scores", {call.first: infinite}
    masks = [name for name in call.arrays if call.kind_of(name) == BOOLEAN and name == "mask"]
    for name in masks:
        mask = given[name].copy()
        mask.reshape(-1)[:4] = False
        yield "a mask", {name: mask, **whole}


def directions(call: Call, name: str, array: torch.Tensor, rng: Any) -> Iterator[torch.Tensor]:
    """Each entry, and each row along random numbers: of other rows the differences would add up."""
    for one in torch.eye(array.numel(), dtype=torch.float64):
        yield one.reshape(array.shape)
    if array.ndim > 1:
        for row in range(array.shape[0]):
            along = torch.zeros_like(array)
            along[row] = torch.as_tensor(rng.standard_normal(tuple(array.shape[1:])))
            yield along


class Point:
    """A call at a kink: a weighted sum of its answers, its derivatives, and its differences."""

    def __init__(self, call: Call, changed: dict[str, np.ndarray], **options: Any) -> None:
        self.call, self.options, self.rng = call, options, np.random.default_rng(0)
        given = {**call.made("torch"), **{n: torch.tensor(a) for n, a in changed.items()}}
        self.given = {name: given[name] for name in call.arrays}
        with torch.no_grad():
            answers = self.answers(self.given)
        self.weights = [
            torch.where(each.isfinite(), torch.as_tensor(self.rng.standard_normal(each.shape)), 0.0)
            for each in answers
        ]
        self.value = float(self.total(self.given))

    def answers(self, given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        found = self.call("torch", **given, **self.options)
        return [each for each in found if each.is_floating_point()]

    def total(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        pairs = zip(self.answers(given), self.weights, strict=True)
        return sum((torch.where(v == 0, 0.0, each * v).sum() for each, v in pairs), torch.zeros(()))

    def slopes(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        leaves = {name: given[name].clone().requires_grad_() for name in self.call.learned}
        total = self.total({**given, **leaves})
        if not total.requires_grad:  # no answer that is finite
            return {}
        found = torch.autograd.grad(
            total, list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        return dict(zip(leaves, found, strict=True))

    def differences(self, name: str, along: torch.Tensor, step: float) -> list[float]:
        """The left and the right one, where there are such."""
        found = []
        for signed in (-step, step):
            moved = torch.where(along == 0, self.given[name], self.given[name] + signed * along)
            with torch.no_grad():
                there = float(self.total({**self.given, name: moved}))
            found.append((there - self.value) / signed)
        return found

    def nearby(self) -> Iterator[dict[str, torch.Tensor]]:
        """Slopes at places next to this one, where there is no kink, and which can be.

        First all arguments move, then the scores alone, for whole margins may have to stay whole.
        """
        for seed in range(128):
            rng, given = np.random.default_rng(seed), dict(self.given)
            for name in self.call.learned if seed < 64 else [self.call.first]:
                noise = rng.uniform(-NEAR, NEAR, given[name].numel())
                if seed < 2:  # equal numbers in the order of their indices, or the other
                    noise = np.sort(noise)[:: 1 - 2 * seed].copy()
                noise = torch.as_tensor(noise).reshape(given[name].shape)
                given[name] = given[name] + noise
            if torch.isfinite(self.total(given)):
                yield self.slopes(given)


class InJax(Point):
    """The same with the derivatives of JAX; the differences are PyTorch's, whose values agree."""

    def slopes(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        arrays = {name: jnp.asarray(each.detach().numpy()) for name, each in given.items()}
        weights = [np.asarray(each) for each in self.weights]

        def total(learned: dict[str, Any]) -> Any:
            found = self.call("jax", **{**arrays, **learned}, **self.options)
            floats = [each for each in found if each.dtype.kind == "f"]
            return sum(
                jnp.where(v == 0, 0.0, each * v).sum()
                for each, v in zip(floats, weights, strict=True)
            )

        found = jax.grad(total)({name: arrays[name] for name in self.call.learned})
        return {name: torch.tensor(np.asarray(each)) for name, each in found.items()}


class Remembered:
    """What an iterator gives, each made once and when it is asked for."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.source, self.known = source, []

    def __iter__(self) -> Iterator[Any]:
        yield from self.known
        for each in self.source:
            self.known.append(each)
            yield each


def judged(slope: float, one: list[float], other: list[float]) -> str:
    """Where a slope is: "between" the differences of two lengths, which tell what they are worth;
    else whether these are those of a "kink", "infinite" or all alike, "smooth".
    """
    doubt = [abs(a - b) if np.isfinite(a - b) else 0.0 for a, b in zip(one, other, strict=True)]
    known = [each for each in (*one, *other) if np.isfinite(each)]
    room = 2e-4 * (1 + abs(slope)) + 2 * sum(doubt)
    if not known or min(known) - room <= slope <= max(known) + room:
        return "between"
    if any(abs(b) > 1.05 * abs(a) + 1e-3 for a, b in zip(one, other, strict=True)):
        return "infinite"  # it grows as the step becomes shorter
    return "kink" if len(known) < 4 or max(known) - min(known) > room else "smooth"


def wrong_at(
    call: Call,
    place: str,
    changed: dict[str, np.ndarray],
    every: bool = True,
    link: Any = None,
    of: type[Point] = Point,
) -> list[str]:
    """What is wrong with the derivatives of a call at a kink.

    Each lies between the differences on both sides, or is the limit of derivatives next to the
    kink, as that of the i-th largest of equal numbers is, or is documented.
    """
    point = of(call, changed, **({} if link is None else {"link": link}))
    wrong, limits = [], Remembered(point.nearby())
    for name, slopes in point.slopes(point.given).items():
        ways = list(directions(call, name, point.given[name], point.rng))
        if not every:
            ways = [ways[point.rng.integers(len(ways))]]
        for along in ways:
            along = torch.where(point.given[name].isfinite(), along, 0.0)
            if not (along != 0).any():
                continue
            slope = float(torch.where(along == 0, 0.0, slopes * along).sum())
            both = [point.differences(name, along, step) for step in (STEP, STEP / 8)]
            found = judged(slope, *both)
            if found == "between" or is_documented(point, place, name, along, slopes, found):
                continue
            # A derivative of no side may be the limit of derivatives next to the kink.
            places = limits if found == "kink" else ()
            near = (float(torch.where(along == 0, 0.0, one[name] * along).sum()) for one in places)
            if not any(abs(slope - one) <= 1e-3 * (1 + abs(slope)) for one in near):
                where = int(along.abs().argmax())
                wrong.append(f"{call.name} {link}: {place}: {name}[{where}]: {slope}, {both}")
    return wrong


def is_documented(
    point: Point, place: str, name: str, along: Any, slopes: torch.Tensor, found: str
) -> bool:
    """Whether the pages of docs/ say that the derivative is not that of a side."""
    call, margin = point.call, name in ("k", "budget", "capacity")
    slope = float(torch.where(along == 0, 0.0, slopes * along).sum())
    if slope == 0 and (found == "infinite" or (margin and place == "closed rows")):
        return True
    if np.isnan(slope):  # what is NaN has NaN derivatives, in what is NaN alone
        return is_nan(point, along)
    at_0 = (along != 0) & (point.given[name] == 0)
    if found == "infinite" and "entropy" in call.name and at_0.any():
        return not slopes[at_0].any()
    if point.options.get("link") not in support.BOUNDED:
        return False
    if "prices" in call.name:  # whole margins leave parts whose prices may differ by anything
        return place in WHOLE_MARGINS
    if "assignment" in call.name:
        return margin and found == "kink" and slope == 0
    # Without a score inside of the support θ is one of many, and nothing moves.
    of_an_end = "threshold" in call.name and name in ("temperature", "costs")
    return (slope == 0 or of_an_end) and is_hard(point, along)


def is_nan(point: Point, along: torch.Tensor) -> bool:
    """Whether all answers are NaN in the rows or matrices that a direction is of."""
    with torch.no_grad():
        answers = point.answers(point.given)
    moved = np.unique(np.nonzero(along.numpy())[0])
    same = [each for each in answers if each.shape[:1] == along.shape[:1]]
    return len(same) == len(answers) and all(each[moved].isnan().all() for each in same)


def is_hard(point: Point, along: torch.Tensor) -> bool:
    """Whether all weights are 0 or 1 in the rows that a direction is of."""
    name = point.call.public.removeprefix("kofn.")
    kinds = ("segment_soft_topk", "soft_knapsack", "soft_topk")
    of = next((kind for kind in kinds if name.startswith(kind)), None)
    if of is None:
        return False
    with torch.no_grad():
        (weights,) = replace(point.call, function=getattr(kofn, of))(
            "torch", **point.given, **point.options
        )
    inside = ((weights > 0) & (weights < 1)).numpy()
    moved = np.unique(np.nonzero(along.numpy())[0])
    given = point.call.arguments
    if of != "segment_soft_topk":
        return not inside[moved].any()
    ids = given.get("segment_ids")
    if ids is None:
        ids = np.repeat(np.arange(len(given["ptr"]) - 1), np.diff(given["ptr"]))
    segments = ids[moved] if along.shape == ids.shape else moved
    return not inside[np.isin(ids, segments)].any()
