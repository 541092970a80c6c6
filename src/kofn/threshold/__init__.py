"""θ of checked rows, solved by the fastest code of each framework, without derivatives."""
