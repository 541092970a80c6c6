"""A caller's rows: scores, k, temperature, mask and costs; checked, settled, and put back.

Here are dense rows; `segments` has rows of many lengths in one array, `shards` rows in parts,
one for each process or device. The loops of compiled code over rows are in `kernels/cpu/rows`.
"""
