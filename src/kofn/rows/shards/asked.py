"""The arguments of a call on rows in parts. (Tests: test_distributed.py.)"""

from __future__ import annotations

from typing import Any, NamedTuple

from kofn.links.link import Link


class Asked(NamedTuple):
    """What a call asks of rows, as far as this process or device is concerned; not yet checked."""

    k: Any  # with costs, the budget
    link: Link
    temperature: Any
    mask: Any
    costs: Any = None
