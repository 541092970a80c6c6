"""Train mixtures of experts with several routers.

Those of kofn.nn.TopKRouter, and the usual ones. Writes checkpoint.pt during training, then
router.json and curves.png.
"""
