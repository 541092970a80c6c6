"""Balance the experts of a small language model in several ways, and measure what it does.

The text task of the study of routers, with batches of several sizes. Writes checkpoint.pt during
training, then balance.json and curves.png.
"""
