"""Types of public signatures: the type of the returned array, and the allowed names.

Only type checkers and editors use them: at run time, nothing here imports a framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    import jax
    import numpy as np
    import torch

ArrayT = TypeVar("ArrayT", bound="torch.Tensor | jax.Array | np.ndarray")
"""The kind of the scores, which is that of the answer."""
ArrayT_co = TypeVar("ArrayT_co", bound="torch.Tensor | jax.Array | np.ndarray", covariant=True)
"""The same for a class that only returns such arrays."""

LinkName = Literal["logistic", "laplace", "normal", "exponential", "linear", "entmax"]
NoiseName = Literal["normal", "uniform", "logistic", "laplace", "gumbel"]
Reduction = Literal["mean", "sum", "none"]
