"""The sums and draws of k-subsets as operations on rows of logits: kernels, or array code.

Their first derivatives are further calls of the same sums, not graphs through the nodes.
"""

from __future__ import annotations

from typing import Any

from kofn import kernels, links
from kofn.adapters import route
from kofn.adapters.theta import threshold as any_threshold
from kofn.arrays import torch as of_torch
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, framework, is_torch, namespace
from kofn.kernels import contract
from kofn.operations.operation import Operation
from kofn.operations.signatures import scores
from kofn.rows.compiled import whole
from kofn.subsets import quadrature, sampling

Kernels = kernels.SubsetKernels | None
LOGITS, COINS = scores("y", "subsets"), scores("z", "subsets")

COVARIANCE = Operation(
    name="subset_covariance",
    takes="z n, k r, v n",
    gives="product n",
    of=COINS,
    kernel=lambda kernels, z, k, v: _sum(kernels, contract.COVARIANCE, z, k, v),
    plain=quadrature.covariance,
)


def covariance(z: Array, k: Array, v: Array) -> Array:
    """Return the covariance of the coins times v, as `quadrature.covariance`."""
    if any(is_torch(each) and of_torch.state.is_recorded(each) for each in (z, v)):
        return quadrature.covariance(z, k, v)
    return route.answer(COVARIANCE, z, k, v)


def _sum(kernels: Kernels, what: int, z: Array, *others: Array) -> Array:
    return _PLAIN[what](z, *others) if kernels is None else kernels.evaluate(what, z, *others)


_PLAIN: dict[int, Any] = {
    contract.LOG_COUNT: quadrature.log_count,
    contract.TAILS: quadrature.tails,
    contract.COVARIANCE: quadrature.covariance,
}


def _log_count_back(kernels: Kernels, z: Array, cotangent: Array, k: Array) -> Array:
    coin = quadrature.coins(z)
    shift = coin.sign * (_sum(kernels, contract.TAILS, z, k) - coin.tail)  # π − p
    return cotangent[..., None] * shift


def _tails_back(kernels: Kernels, z: Array, cotangent: Array, k: Array) -> Array:
    return _sum(kernels, contract.COVARIANCE, z, k, quadrature.coins(z).sign * cotangent)


TAILS = Operation(
    name="subset_tails",
    takes="z n, k r",
    gives="tail n",
    of=COINS,
    kernel=lambda kernels, z, k: _sum(kernels, contract.TAILS, z, k),
    plain=quadrature.tails,
    back=(
        Operation(
            name="subset_tails_backward",
            takes="cotangent n, z n, k r",
            gives="z n",
            of=COINS,
            kernel=_tails_back,
            plain=lambda z, cotangent, k: _tails_back(None, z, cotangent, k),
        ),
    ),
)


def _log_count_again(z: Array, cotangent: Array, k: Array) -> Array:
    coin = quadrature.coins(z)
    return cotangent[..., None] * (coin.sign * (sum_of(TAILS, z, k) - coin.tail))


LOG_COUNT = Operation(
    name="subset_log_count",
    takes="z n, k r",
    gives="count r",
    of=COINS,
    kernel=lambda kernels, z, k: _sum(kernels, contract.LOG_COUNT, z, k),
    plain=quadrature.log_count,
    back=(
        Operation(
            name="subset_log_count_backward",
            takes="cotangent r, z n, k r",
            gives="z n",
            of=COINS,
            kernel=_log_count_back,
            plain=_log_count_again,
        ),
    ),
)


def sum_of(operation: Operation, z: Array, k: Array) -> Array:
    """Return one of the sums, by the fastest code."""
    if is_torch(z) and of_torch.state.is_eager(z):
        # By array code too, the way back is another sum and not a graph through the nodes.
        return route.computed(operation, kernel_for(z), z, (k,))
    return route.answer(operation, z, k)


def kernel_for(z: Array) -> Any:
    """Return the module with the kernels for these rows, or None."""
    kind = str(framework(z))
    if is_torch(z) and not of_torch.state.is_plain(z):
        return None
    return kernels.serving_of("subsets", z, kind)


def threshold(y: Array, k: Array) -> tuple[Array, Array]:
    """Return λ as a sum of two numbers per row: with it, the coins y − λ have k heads on average.

    It is a constant: every λ gives the same distribution.
    """
    hi, lo = any_threshold(stop_gradient(y), k, namespace(k).ones_like(k), links.logistic)
    return hi, lo


def heads(z: Array, k: Array, uniforms: Array) -> Array:
    """Draw as `sampling.draw`, by the fastest available code."""
    kernel = None if is_torch(z) and of_torch.state.is_recorded(z) else kernel_for(z)
    if kernel and kernel.draw:
        return kernel.draw(z, k, uniforms)
    return whole(sampling.draw, z, k, uniforms)


def _marginals(kernels: Any, y: Array, k: Array) -> tuple[Array, Array]:
    """Return the marginals of logits y, and their threshold as two floats."""
    hi, lo = threshold(y, k)
    return kernels.at(contract.MARGINALS, y, hi, lo, k), namespace(k).stack((hi, lo))


def marginals(plain: Any) -> Operation:
    """Declare marginals of logits; plain(y, k) is the array code."""
    return Operation(
        name="subset_marginals",
        takes="y n, k r",
        gives="p n, placed 2",
        of=LOGITS,
        kernel=_marginals,
        plain=plain,
        back=(
            Operation(
                name="subset_marginals_backward",
                takes="cotangent n, y n, k r, placed 2",
                gives="y n",
                of=LOGITS,
                kernel=lambda kernels, y, cotangent, k, placed: kernels.at(
                    contract.COVARIANCE, y, placed[0], placed[1], k, cotangent
                ),
            ),
        ),
    )


def marginals_at(plain: Any) -> Operation:
    """Declare the same with a known threshold; plain(y, k, theta) is the array code."""
    return Operation(
        name="",
        takes="y n, k r, hi r, lo r",
        gives="p n",
        of=LOGITS,
        kernel=lambda kernels, y, k, hi, lo: kernels.at(contract.MARGINALS, y, hi, lo, k),
        plain=lambda y, k, hi, lo: plain(y, k, (hi, lo)),
        back=(
            Operation(
                name="",
                takes="cotangent n, y n, k r, hi r, lo r",
                gives="y n",
                of=LOGITS,
                kernel=lambda kernels, y, cotangent, k, hi, lo: kernels.at(
                    contract.COVARIANCE, y, hi, lo, k, cotangent
                ),
            ),
        ),
    )
