"""Segments of one long axis, copied to dense rows and back."""
