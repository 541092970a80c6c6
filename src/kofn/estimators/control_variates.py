"""REBAR: a score function whose baseline is a relaxation of the same sample."""

from __future__ import annotations

from functools import partial
from typing import Any, Never

from kofn.arrays.autodiff import stop_gradient, values_and_slopes
from kofn.arrays.checks import check_number
from kofn.arrays.kinds import Array, cast, framework
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT
from kofn.arrays.without_onnx import refuse
from kofn.estimators.protocol import (
    Distribution,
    Function,
    along,
    check_samples,
    mean,
    needs,
    together,
    values_of,
)


def rebar(
    choice: Distribution[ArrayT],
    f: Function[ArrayT],
    rng: Any = None,
    *,
    samples: int = 1,
    temperature: float | Array = 0.5,
    scale: float | Array = 1.0,
    **others: Never,
) -> ArrayT:
    """Return mean f(s), with the gradient (f(s) − ηf(y))·∇log P(s) + η∇f(y) − η∇f(ỹ).

    s is the choice that perturbed logits z make, y is their relaxation, and ỹ has the value of y
    but the derivatives of noise given s. The three terms with η add up to 0 in expectation, and
    reduce the variance because y and s are correlated.

    Biased: no, for any η and temperature.
    Needs of f: a gradient, and to accept relaxed samples.
    Calls of f: 2·samples, one of the two with a gradient.

    Args:
        choice: a `Categorical` or `Bernoulli`, or any distribution with `perturb`, `choose`,
            `relax` and `conditioned`.
        f, rng, samples: as for `score_function`.
        temperature: > 0, of the relaxation.
        scale: η, a number or an array that broadcasts to f's values; 0 is the score function.

    Returns:
        The mean of f over the samples, to differentiate (once).

    Raises:
        TypeError, ValueError: as for `score_function`.

    Source: Tucker, Mnih, Maddison, Lawson & Sohl-Dickstein, "REBAR" (2017), with its coupling of
    the two relaxations; Grathwohl et al. (2018) for several categories.
    """
    if others:
        raise unknown_keyword(rebar, others)
    law = needs(choice, "rebar", "log_prob", "perturb", "choose", "relax", "conditioned")
    refuse("estimators.rebar")
    noisy = law.perturb((check_samples(samples),), rng)
    dtype = law.logits.dtype
    sample = cast(law.choose(noisy), dtype)
    values = values_of(f, sample)
    relaxed = cast(law.relax(noisy, temperature), dtype)
    given = cast(law.relax(law.conditioned(noisy), temperature), dtype)
    soft, slopes = values_and_slopes(partial(values_of, f), relaxed)
    if framework(scale) is None:
        check_number("scale", scale, low=-float("inf"), allowed="a finite number, or an array")
    weight = stop_gradient(values - scale * stop_gradient(soft))
    log_prob = together(law.log_prob(sample), values)
    # y and ỹ are one number: only their gradients differ.
    change = (relaxed - stop_gradient(relaxed)) - (given - stop_gradient(given))
    path = along(law, slopes * change, values)
    return mean(values + weight * (log_prob - stop_gradient(log_prob)) + scale * path)
