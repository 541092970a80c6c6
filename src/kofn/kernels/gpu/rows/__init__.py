"""Thresholds, weights and gradients of rows, on a GPU."""
