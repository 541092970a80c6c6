"""The array code that defines operations: weights, values, logarithms and losses at a known θ."""
