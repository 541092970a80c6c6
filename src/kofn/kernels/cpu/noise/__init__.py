"""Sums over the entries of a row at the nodes of `maps/argmax_quadrature.py`."""
