"""Checked rows in; weights, thresholds, values and logarithms out, with all derivatives."""
