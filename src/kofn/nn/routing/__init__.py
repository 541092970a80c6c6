"""Routers for mixtures of experts."""
