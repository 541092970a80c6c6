"""The work behind `kofn train vae`: a discrete autoencoder and ways to train it."""
