"""Marginals of k-subsets for JAX, with derivatives of any order, from two primitives.

The tangent of marginals is the covariance of the coins times the logits' tangent, and its own
transpose. Derivatives of the covariance come from array code.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from kofn.adapters.jax.linear import Linear, Pull, differentiate
from kofn.adapters.jax.operators import Operator, Settings, Site, bind, wanted
from kofn.arrays.kinds import promoting
from kofn.kernels.contract import COVARIANCE, MARGINALS
from kofn.subsets.operations import threshold


def marginals(y: jax.Array, k: jax.Array, plain: Any, theta: Any = None) -> jax.Array | None:
    """Return the marginals of logits y, or None without kernels.

    `plain` is their array code; `theta` is the threshold, if it is known.
    """
    return _marginals(Settings("", None, True, plain), y, k, theta) if wanted() else None


@partial(jax.jit, static_argnums=0)
@promoting
def _marginals(settings: Settings, y: jax.Array, k: jax.Array, theta: Any) -> jax.Array:
    return bind(_MARGINALS, y, k, *(theta or threshold(y, k)), settings=settings)[0]


def _plain(y: Any, k: Any, hi: Any, lo: Any, *, settings: Settings) -> Any:
    return [settings.reference(y, k)]


def _pushed(y: Any, k: Any, hi: Any, lo: Any, v: Any, *, settings: Settings) -> Any:
    """Return the tangent of the marginals along v: the covariance times v."""
    function = partial(_plain, k=k, hi=hi, lo=lo, settings=settings)
    return jax.jvp(function, (y,), (v,))[1]


def _kernel(what: int, site: Site, *values: Any) -> Any:
    y = site.shapes[0]
    attributes = site.module.plan_of_sums(what, y.shape[-1], y.dtype)
    return site.call(attributes, site.shapes, values, site.context.avals_out)


_MARGINALS = Operator("kofn_marginals", (0,), (0,), _plain, partial(_kernel, MARGINALS))
_COVARIANCE = Operator("kofn_covariance", (0,), (0, 4), _pushed, partial(_kernel, COVARIANCE))
_PULL = Pull(_COVARIANCE, (0,))
# The logits move; k and both floats of the threshold are constants.
differentiate(Linear(_MARGINALS, _COVARIANCE, (_PULL,), moving=1, numbers=4))
