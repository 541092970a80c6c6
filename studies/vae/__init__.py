"""Train a discrete autoencoder by several gradient estimators.

The data are scikit-learn's digits. Writes checkpoint.pt during training, then vae.json,
curves.png and digits.png.
"""
