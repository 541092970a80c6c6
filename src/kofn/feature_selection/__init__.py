"""Feature selection with scikit-learn's interface."""

from kofn.feature_selection.selector import SoftTopKSelector

__all__ = ["SoftTopKSelector"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)
