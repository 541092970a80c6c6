"""`kofn compare` and `kofn apply`: apply maps to a file of scores."""
