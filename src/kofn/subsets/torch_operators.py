"""The sums of k-subsets as torch operators with a first derivative, which compiled code calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn import kernels, links
from kofn.arrays.torch_operator import REFUSED, call, define, differentiate, refuse_second
from kofn.arrays.torch_state import constant_result, is_compiled
from kofn.kernels.contract import COVARIANCE, LOG_COUNT, MARGINALS, TAILS
from kofn.rows.threshold_route import threshold
from kofn.subsets import quadrature


def serves(z: Tensor) -> bool:
    """Return whether the rows of a compiled function go to the operators."""
    return is_compiled() and _is_served(z.device.type, z.dtype)


@constant_result
def _is_served(device: str, dtype: torch.dtype) -> bool:
    return kernels.serving_subsets(torch.empty(0, dtype=dtype, device=device), "torch") is not None


def _kernel(z: Tensor) -> kernels.SubsetKernels:
    """Return the kernels found while tracing; a later KOFN_KERNELS does not change the road."""
    found = kernels.for_subsets(z, "torch")
    assert found is not None
    return found


def _rows(z: Tensor, *_: Any) -> Tensor:
    return z.new_empty(z.shape[:-1])


def _entries(z: Tensor, *_: Any) -> Tensor:
    return z.new_empty(z.shape)


@define("Tensor z, Tensor k", "Tensor", _rows)
def subset_log_count(z: Tensor, k: Tensor) -> Tensor:
    return _kernel(z).evaluate(LOG_COUNT, z, k)


@define("Tensor z, Tensor k", "Tensor", _entries)
def subset_tails(z: Tensor, k: Tensor) -> Tensor:
    return _kernel(z).evaluate(TAILS, z, k)


@define("Tensor z, Tensor k, Tensor v", "Tensor", _entries)
def subset_covariance(z: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _kernel(z).evaluate(COVARIANCE, z, k, v)


@define("Tensor cotangent, Tensor z, Tensor k", "Tensor", lambda _, z, __: _entries(z))
def subset_log_count_backward(cotangent: Tensor, z: Tensor, k: Tensor) -> Tensor:
    coin = quadrature.coins(z)
    shift = coin.sign * (_kernel(z).evaluate(TAILS, z, k) - coin.tail)  # π − p
    return cotangent[..., None] * shift


@define("Tensor cotangent, Tensor z, Tensor k", "Tensor", lambda _, z, __: _entries(z))
def subset_tails_backward(cotangent: Tensor, z: Tensor, k: Tensor) -> Tensor:
    return _kernel(z).evaluate(COVARIANCE, z, k, quadrature.coins(z).sign * cotangent)


def _entries_and_pair(y: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape), y.new_empty((2, *y.shape[:-1]))


@define("Tensor y, Tensor k", "(Tensor, Tensor)", _entries_and_pair)
def subset_marginals(y: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return the marginals of logits y, and their threshold as two floats."""
    hi, lo = threshold(y, k, torch.ones_like(k), links.logistic)
    return _kernel(y).at(MARGINALS, y, hi, lo, k), torch.stack((hi, lo))


@define(
    "Tensor cotangent, Tensor y, Tensor k, Tensor placed", "Tensor", lambda _, y, *__: _entries(y)
)
def subset_marginals_backward(cotangent: Tensor, y: Tensor, k: Tensor, placed: Tensor) -> Tensor:
    return _kernel(y).at(COVARIANCE, y, placed[0], placed[1], k, cotangent)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


differentiate(
    subset_log_count,
    lambda ctx, v: (subset_log_count_backward(v, *ctx.saved_tensors), None),
    _keep,
)
differentiate(
    subset_tails, lambda ctx, v: (subset_tails_backward(v, *ctx.saved_tensors), None), _keep
)


def _keep_threshold(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.set_materialize_grads(False)


def _marginals_pullback(ctx: Any, cotangent: Tensor | None, of_threshold: Tensor | None) -> Any:
    if of_threshold is not None:
        raise RuntimeError(REFUSED)
    if cotangent is None:
        return None, None
    return subset_marginals_backward(cotangent, *ctx.saved_tensors), None


differentiate(subset_marginals, _marginals_pullback, _keep_threshold)
for _operator in (
    subset_covariance,
    subset_log_count_backward,
    subset_tails_backward,
    subset_marginals_backward,
):
    refuse_second(_operator)


def marginals_of(y: Tensor, k: Tensor) -> Tensor:
    return call("subset_marginals", y, k)[0]


def log_count_of(z: Tensor, k: Tensor) -> Tensor:
    return call("subset_log_count", z, k)


def tails_of(z: Tensor, k: Tensor) -> Tensor:
    return call("subset_tails", z, k)


def covariance_of(z: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return call("subset_covariance", z, k, v)
