"""Feature selection with scikit-learn's interface."""
