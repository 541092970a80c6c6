"""The zeros of `maps/taylor_zeros.py` as constants in a graph that torch.compile traces."""

from __future__ import annotations

from kofn.arrays.torch.state import constant_result
from kofn.maps.taylor_zeros import Zeros, zeros


@constant_result
def constant_zeros(order: int) -> Zeros:
    return zeros(order)
