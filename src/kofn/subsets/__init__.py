"""The mathematics of k-subsets: coins given how many fall heads."""
