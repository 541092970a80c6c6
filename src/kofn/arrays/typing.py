"""Types of public signatures: the type of the returned array, and the allowed names.

Only type checkers and editors use them: at run time, nothing here imports a framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from typing import Any, Protocol

    class AnyArray(Protocol):
        """What torch.Tensor, jax.Array and numpy.ndarray have in common, and lists have not.

        Their union would accept everything where one of the frameworks is not installed, because
        a class that cannot be imported counts as Any.
        """

        @property
        def shape(self) -> Any: ...
        @property
        def dtype(self) -> Any: ...
        @property
        def ndim(self) -> Any: ...
        def reshape(self, *args: Any, **kwargs: Any) -> Any: ...


ArrayT = TypeVar("ArrayT", bound="AnyArray")
"""The kind of the scores, which is that of the answer."""
ArrayT_co = TypeVar("ArrayT_co", bound="AnyArray", covariant=True)
"""The same for a class that only returns such arrays."""

LinkName = Literal["logistic", "laplace", "normal", "exponential", "linear", "entmax"]
NoiseName = Literal["normal", "uniform", "logistic", "laplace", "gumbel"]
Reduction = Literal["mean", "sum", "none"]
