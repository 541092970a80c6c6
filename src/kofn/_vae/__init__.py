"""The work behind `kofn train vae`: a discrete autoencoder, the ways to train it, what they reach."""
