"""kofn train: a discrete autoencoder on handwritten digits."""
