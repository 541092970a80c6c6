"""Rows of float64 in a GPU's memory, for the searches of array code."""
