"""Feature selection with scikit-learn's interface."""

from kofn.feature_selection.selector import SoftTopKSelector

__all__ = ["SoftTopKSelector"]
