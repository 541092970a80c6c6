"""All operations on rows that are declared in this room; the adapters of a framework take these.

An operation is declared by standing in one of these files by a name of its own: each that has an
operator's name is taken, but ways back, and those that answer by the name of an earlier one.
"""

from __future__ import annotations

from kofn.operations import choice, knapsack, logarithms, losses, rest, topk, truncated
from kofn.operations.operation import Operation

FILES = topk, logarithms, losses, truncated, rest, choice, knapsack

_EVERY = [each for file in FILES for each in vars(file).values() if isinstance(each, Operation)]
_BACK = {id(back) for operation in _EVERY for back in operation.back}
_BY_NAME: dict[str, Operation] = {}
for _each in _EVERY:
    if _each.name and id(_each) not in _BACK:
        _BY_NAME.setdefault(_each.name, _each)

DECLARED = tuple(_BY_NAME.values())
