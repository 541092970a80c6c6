"""Train sparse autoencoders with equally many latents.

By kofn.nn.TopKSAE and by the usual methods. Writes checkpoint.pt during training, then
sae.json, recovery.png and features.png.
"""
