"""The conditional Bernoulli distribution: independent coins, given the number of heads."""
