"""The estimators by name."""

from __future__ import annotations

from collections.abc import Callable

from kofn.arrays.kinds import Array
from kofn.estimators.control_variates import rebar
from kofn.estimators.implicit_mle import perturbed
from kofn.estimators.pathwise import gumbel_rao, reinmax, reparameterized, straight_through
from kofn.estimators.score import leave_one_out, score_function

TABLE: dict[str, Callable[..., Array]] = {
    function.__name__: function
    for function in (
        score_function,
        leave_one_out,
        rebar,
        reparameterized,
        straight_through,
        gumbel_rao,
        reinmax,
        perturbed,
    )
}
"""The estimators by name, for `study`."""
