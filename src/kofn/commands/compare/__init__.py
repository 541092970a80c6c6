"""kofn compare and kofn apply: maps on a file of scores."""
