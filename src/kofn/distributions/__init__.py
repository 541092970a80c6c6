"""Distributions over choices."""
