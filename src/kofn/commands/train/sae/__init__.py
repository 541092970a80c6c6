"""`kofn train sae`: sparse autoencoders on known features and on activations of a network."""
