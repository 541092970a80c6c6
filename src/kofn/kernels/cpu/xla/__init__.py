"""The kernels of this folder as functions that XLA calls in compiled JAX programs."""
