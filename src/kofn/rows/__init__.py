"""A caller's rows: scores, k, temperature, mask and costs; checked, settled, and put back.

Here are dense rows; `segments` has rows of many lengths in one array, `shards` rows of which each
process or device holds a part. The loops of compiled code over rows are in `kernels/cpu/rows`.
"""
