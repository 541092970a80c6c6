"""Maps: scores in, weights out."""
