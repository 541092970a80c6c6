"""A link is a file here: its formulas, its traits, and what array code does better."""
