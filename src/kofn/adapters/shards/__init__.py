"""Rows in several processes: their answers, and the search for θ by messages."""
