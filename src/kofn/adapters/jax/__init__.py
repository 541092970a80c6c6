"""Declared operations on JAX, and how it finds θ."""
