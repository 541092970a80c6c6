"""Routers of transformers with the gates of kofn: a file per model, and what they share."""
