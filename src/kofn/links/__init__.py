"""Links: the cumulative distribution functions F of Σ F((x − θ)/T) = k."""

from kofn.arrays.names import answer_for_others
from kofn.links.link import Link
from kofn.links.table import TABLE as TABLE
from kofn.links.table import entmax, exponential, laplace, linear, logistic, normal

__all__ = ["Link", "entmax", "exponential", "laplace", "linear", "logistic", "normal"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(__name__, __all__)
