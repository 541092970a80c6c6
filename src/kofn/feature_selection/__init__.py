"""Feature selection with scikit-learn's interface."""

from kofn.arrays.keywords_of_classes import answer_for_keywords
from kofn.arrays.names import answer_for_others
from kofn.feature_selection.selector import SoftTopKSelector

__all__ = ["SoftTopKSelector"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(__name__, __all__)
answer_for_keywords(SoftTopKSelector)
