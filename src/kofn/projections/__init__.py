"""Euclidean projections of rows onto sets of choices, with exact Jacobians.

The names and the order of arguments are as in optax.projections, where it has them.
"""

from kofn.arrays.names import answer_for_others
from kofn.projections.balls import projection_l1_ball, projection_sparse_vector
from kofn.projections.box_section import projection_box_section
from kofn.projections.simplex import (
    projection_capped_simplex,
    projection_simplex,
    projection_sparse_simplex,
)

__all__ = [
    "projection_box_section",
    "projection_capped_simplex",
    "projection_l1_ball",
    "projection_simplex",
    "projection_sparse_simplex",
    "projection_sparse_vector",
]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(__name__, __all__)
