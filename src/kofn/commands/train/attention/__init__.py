"""`kofn train attention`: sparse and softmax attention at lengths beyond those trained at."""
