"""Links: the cumulative distribution functions F of Σ F((x − θ)/T) = k.

A file of `built_in` is a link; `make signatures` writes its name here.
"""

from kofn.arrays.names import answer_for_others
from kofn.links.built_in.entmax import entmax as entmax
from kofn.links.built_in.exponential import exponential as exponential
from kofn.links.built_in.laplace import laplace as laplace
from kofn.links.built_in.linear import linear as linear
from kofn.links.built_in.logistic import logistic as logistic
from kofn.links.built_in.normal import normal as normal
from kofn.links.link import Link as Link
from kofn.links.scalar import ScalarLink as ScalarLink

# isort: split
from kofn.links.table import TABLE as TABLE

__all__ = ["Link", "ScalarLink", "entmax", "exponential", "laplace", "linear", "logistic", "normal"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(__name__, __all__)
