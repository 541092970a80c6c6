"""`kofn train vae`: autoencoders with discrete latents, trained by several gradient estimators."""
