"""Train on what was sampled, or not: tokens of truncated samplers, experts, and a teacher's tokens.

Writes checkpoint.pt during training, then replay.json and curves.png.
"""
