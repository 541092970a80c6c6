"""The arguments of a router, checked."""

from __future__ import annotations

import math
import warnings
from typing import Any

from kofn.arrays.checks import check_choice, check_flag, check_integer, check_number
from kofn.maps.balance import Groups

JOINT = ("expert_choice", "budget")
"""The selections that choose among all tokens of a call."""
EACH_K = ("hard", "assignment")
"""The selections in which each token has k experts."""
BALANCED = ("hard", "budget")


def k(k: Any, num_experts: int, selection: str) -> float:
    if selection in EACH_K:
        allowed = f"an integer in [1, num_experts] (here num_experts = {num_experts})"
        return check_integer("k", k, allowed, 1, num_experts)
    allowed = f"a number in (0, num_experts] (here num_experts = {num_experts})"
    return check_number(
        "k", k, low=0.0, high=num_experts, strict=True, allowed=allowed, arrays=False
    )


def gates(gates: str | None, selection: str, k: float, num_experts: int) -> str:
    if gates is None:
        gates = "topk" if selection == "soft" else "mixture"
    check_choice("gates", gates, ("mixture", "topk"))
    if gates == "mixture" and selection == "soft":
        raise ValueError(
            "gates must be 'topk' for selection='soft', whose weights are the soft top-k's; "
            "got 'mixture'"
        )
    if gates == "topk" and k == num_experts:
        raise ValueError(
            f"k must be below num_experts for gates='topk' and selection='soft': with k = {k:g} of "
            f"{num_experts} every gate is 1 and the router gets no gradient"
        )
    return gates


def normalize(normalize: bool | None, selection: str, k: float) -> bool:
    if normalize is not None and not isinstance(normalize, bool):
        raise TypeError(f"normalize must be True, False or None; got {normalize!r}")
    if normalize and selection in JOINT:
        raise ValueError(
            f"normalize must be False for selection={selection!r}: the only expert of a token "
            "would have a gate of 1 that nothing can change; got True"
        )
    if normalize and selection in EACH_K and k == 1:
        raise ValueError(
            "normalize must be False for k = 1: a single gate divided by itself is always 1, and "
            "the router would learn nothing; got True"
        )
    if normalize is None and selection in EACH_K and k == 1:
        warnings.warn(
            "a single gate (k = 1) is not normalized, because it would always be 1; "
            "normalize=False says so without this warning",
            stacklevel=5,  # a wrapper stands before the router's __init__ (keywords_of_classes.py)
        )
    if normalize is None:
        return selection == "soft" or (selection in EACH_K and k > 1)
    return normalize


def rate(balance: Any, selection: str) -> float | None:
    """Return the rate of the sign rule."""
    if balance is None:
        return None
    refuse("balance", balance, selection, BALANCED)
    allowed = "None, 'quantile' or a finite number > 0"
    if isinstance(balance, str):
        raise ValueError(f"balance must be {allowed}; got {balance!r}")
    return check_number("balance", balance, low=0.0, strict=True, allowed=allowed, arrays=False)


def quantile(
    balance: Any, bins: Any, ema: Any, per_sequence: Any, selection: str
) -> tuple[int | None, float] | None:
    """Return bins and ema of a balance by quantiles; None for another."""
    check_flag("per_sequence", per_sequence)
    if isinstance(balance, str) and balance == "quantile":
        refuse("balance", balance, selection, BALANCED)
        refuse("per_sequence", per_sequence, selection, ("hard",))
        if bins is not None:
            bins = check_integer("bins", bins, "None or an integer ≥ 2", 2)
        number = check_number(
            "ema", ema, low=0.0, high=1.0, allowed="a number in [0, 1)", arrays=False
        )
        if number == 1:
            raise ValueError(f"ema must be a number in [0, 1); got {ema!r}")
        return bins, float(number)
    for name, value, usual in (
        ("bins", bins, None),
        ("ema", ema, 0.0),
        ("per_sequence", per_sequence, False),
    ):
        if type(value) not in (type(usual), int, float) or value != usual:
            raise ValueError(f"{name} is for balance='quantile'; got {value!r} with {balance!r}")
    return None


def score_function(name: str, selection: str) -> None:
    check_choice("score_function", name, ("softmax", "sigmoid"))
    refuse("score_function", name != "softmax" and name, selection, BALANCED)


def groups(
    n_group: Any, topk_group: Any, num_experts: int, k: float, selection: str
) -> Groups | None:
    """Return the groups of experts, or None for no limit."""
    if n_group is None and topk_group is None:
        return None
    if n_group is None or topk_group is None:
        raise ValueError(f"n_group and topk_group go together; got {n_group!r} and {topk_group!r}")
    number = check_integer("n_group", n_group, "None or an integer ≥ 1", 1)
    chosen = check_integer(
        "topk_group", topk_group, f"an integer in [1, n_group] (here {number})", 1, number
    )
    refuse("n_group", number, selection, ("hard",))
    size = num_experts // number
    if num_experts % number or (size < 2 and chosen < number):
        raise ValueError(
            f"n_group must divide num_experts = {num_experts} into groups of at least 2; "
            f"got {number}"
        )
    if k > chosen * size:
        raise ValueError(
            f"k must be at most {chosen * size}, the experts in topk_group = {chosen} groups; "
            f"got {k:g}"
        )
    return None if chosen == number else Groups(number, chosen)


def width(most: int | None, selection: str, k: float, num_experts: int) -> int:
    if most is None:
        return int(k) if selection in EACH_K else num_experts
    refuse("max_experts", most, selection, JOINT)
    least = math.ceil(k)
    allowed = f"an integer in [{least}, {num_experts}], at least k and at most num_experts"
    return check_integer("max_experts", most, allowed, least, num_experts)


def refuse(name: str, value: Any, selection: str, allowed: tuple[str, ...]) -> None:
    """Refuse an argument that this selection would ignore."""
    if value and selection not in allowed:
        named = " or ".join(map(repr, allowed))
        raise ValueError(f"{name} is for selection={named}; got {value!r} with {selection!r}")
