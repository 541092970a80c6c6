"""Types of arrays, and the allowed names of public signatures.

Only type checkers and editors use them: at run time, nothing here imports a framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    from torch import Tensor as Tensor

    from kofn.arrays.protocols import Array as Array
    from kofn.arrays.protocols import ArrayOf as ArrayOf
    from kofn.arrays.protocols import Axis as Axis
    from kofn.arrays.protocols import DType as DType
    from kofn.arrays.protocols import FloatInfo as FloatInfo
    from kofn.arrays.protocols import Namespace as Namespace
    from kofn.arrays.protocols import Number as Number
    from kofn.arrays.protocols import Special as Special
else:  # to make protocols of so many methods takes a millisecond of every import of kofn
    Array = Axis = DType = FloatInfo = Namespace = Number = Special = Tensor = object

ArrayT = TypeVar("ArrayT", bound="ArrayOf[Any] | np.ndarray[Any, Any]")
"""The kind of the scores, and of the answer."""
ArrayT_co = TypeVar("ArrayT_co", bound="ArrayOf[Any] | np.ndarray[Any, Any]", covariant=True)
"""The same for a class that only returns such arrays."""
if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    KindT = WithDefault("KindT", bound=Array, covariant=True, default=Array)
    """The same for a class whose name alone, without a kind, stands for any arrays."""
else:
    KindT = TypeVar("KindT", covariant=True)

LinkName = Literal["entmax", "exponential", "laplace", "linear", "logistic", "normal"]
NoiseName = Literal["normal", "uniform", "logistic", "laplace", "gumbel"]
Reduction = Literal["mean", "sum", "none"]
