"""The namespace of plain tensors in main memory: PyTorch's own functions by the array API's names.

It is for code that calls them hundreds of times on small tensors, which all have one dtype and at
least one dimension, or are numbers where PyTorch takes them. What only devices, compilers and
promotion need is left out. It gives the answers of `namespace.py`, bit for bit
(test_arrays_torch_namespace.py).
"""

from __future__ import annotations

import torch

from kofn.arrays.torch import namespace

globals().update({name: each for name, each in vars(namespace).items() if name[0] != "_"})

sum, any, all, where = torch.sum, torch.any, torch.all, torch.where
max, min, maximum, minimum = torch.amax, torch.amin, torch.maximum, torch.minimum
clip = torch.clamp
