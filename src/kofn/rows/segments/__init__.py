"""Rows of many lengths in one array: their order, their form, and their hard choice."""
