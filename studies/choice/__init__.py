"""Train small networks that see k of 64 pixels, which learned scores choose.

By straight-through estimators and by soft top-k that is cooled, with several rates of the scores.
Writes checkpoint.pt during training, then choice.json and curves.png.
"""
