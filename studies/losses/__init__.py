"""Train small networks by each loss of one label.

From scratch, after cross-entropy, and with labels of which half are random.
Writes checkpoint.pt during training, then losses.json and curves.png.
"""
