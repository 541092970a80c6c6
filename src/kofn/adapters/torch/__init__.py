"""Declared operations on PyTorch, and how it finds θ."""
