"""Rows of many lengths in one array: their order, their form, and what is computed on them."""
