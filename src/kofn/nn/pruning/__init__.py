"""Pruning: masks that are learned together with the weights."""
