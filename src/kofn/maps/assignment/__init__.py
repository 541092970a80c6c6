"""Choices with two margins: rows and columns of a matrix that sum to given numbers."""
