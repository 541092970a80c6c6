"""The probability of being the largest under noise: nodes, sums over them, and derivatives."""
