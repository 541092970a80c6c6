"""What Numba lacks: intrinsics, vector mathematics, a pool of threads."""
