"""The threshold θ of every row: the reference."""
