"""Exact order statistics: the k largest numbers, and quantiles."""
