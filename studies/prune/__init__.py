"""Train small networks of which few weights are left.

By kofn.nn.prune, by magnitude and by other ways. Writes checkpoint.pt during training, then
prune.json and curves.png.
"""
