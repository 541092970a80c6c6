"""Sums over k-subsets, on a GPU."""
