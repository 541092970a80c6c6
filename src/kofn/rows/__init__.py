"""Weights, thresholds, values and logarithms of checked rows of scores, with all derivatives."""
