"""Attention with sparse weights."""
