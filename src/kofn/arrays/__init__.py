"""Arrays of NumPy, PyTorch and JAX: one set of operations for the three frameworks."""
