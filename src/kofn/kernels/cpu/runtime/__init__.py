"""Intrinsics, vector mathematics and a pool of threads, which Numba lacks."""
