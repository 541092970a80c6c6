"""Soft assignment of a matrix whose rows come in blocks."""
