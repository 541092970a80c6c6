"""Links: the cumulative distribution functions F of Σ F((x − θ)/T) = k. A link is one line here."""

from kofn.arrays.names import answer_for_others
from kofn.links.entmax import entmax as entmax
from kofn.links.exponential import exponential as exponential
from kofn.links.laplace import laplace as laplace
from kofn.links.linear import linear as linear
from kofn.links.link import Link as Link
from kofn.links.logistic import logistic as logistic
from kofn.links.normal import normal as normal

# isort: split
from kofn.links.table import TABLE as TABLE

__all__ = ["Link", *sorted(TABLE)]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(__name__, __all__)
