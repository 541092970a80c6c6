"""JAX's part of the array code; nothing here is imported before JAX is."""
