"""Rows whose entries lie in several processes, or along axes of a mesh: messages and reductions."""
