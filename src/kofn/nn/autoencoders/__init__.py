"""Sparse autoencoders."""
