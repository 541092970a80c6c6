"""The reference solver for the threshold θ of every row."""
