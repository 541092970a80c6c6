"""θ and the weights of short rows, all at once, where nothing is unusual."""
