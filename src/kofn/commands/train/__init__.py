"""`kofn train`: train a discrete autoencoder on handwritten digits."""
