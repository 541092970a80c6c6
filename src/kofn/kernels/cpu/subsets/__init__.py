"""Sums over k-subsets and samples of them, on a CPU."""
