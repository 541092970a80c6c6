"""Rows whose entries have costs, in main memory."""
