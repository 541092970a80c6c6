"""The operations on rows, each declared once: what it takes and gives, and what computes it."""
