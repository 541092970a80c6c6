"""Train small transformers; test them at longer sequences.

With softmax, entmax and soft top-k as attention. Writes checkpoint.pt during training, then
attention.json, curves.png and maps.png.
"""
