"""`kofn apply`: scores in, weights out."""
