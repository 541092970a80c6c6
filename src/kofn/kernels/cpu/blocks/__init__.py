"""A block of a row that is never held as one array."""
