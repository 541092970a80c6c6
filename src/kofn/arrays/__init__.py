"""Arrays of NumPy, PyTorch and JAX: the only room that tells the three apart."""
