"""Maps from scores to weights."""
