"""`kofn train prune`: small networks with few weights left, by several methods."""
