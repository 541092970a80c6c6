"""Passes without a search: noise at quadrature nodes, blocks of a row, segments of an axis."""
