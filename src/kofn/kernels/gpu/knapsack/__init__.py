"""Rows whose entries have costs, in a GPU's memory."""
