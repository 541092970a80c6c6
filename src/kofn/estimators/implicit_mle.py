"""Implicit maximum likelihood: finite differences of the choice along f's gradient."""

from __future__ import annotations

from functools import partial
from typing import Any, Never

from kofn.arrays.autodiff import moving, stop_gradient, values_and_slopes
from kofn.arrays.checks import check_number
from kofn.arrays.kinds import cast
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
    values_of,
)


def perturbed(
    choice: Distribution[ArrayT],
    f: Function[ArrayT],
    rng: Any = None,
    *,
    samples: int = 1,
    step: float = 1.0,
    **others: Never,
) -> ArrayT:
    """Return mean f(s), with the gradient (s − s′)/step: implicit maximum likelihood.

    s is the choice of perturbed logits z, and s′ of z − step·∇f(s), by the same noise: the
    logits move towards the sample that f would rather have had. What is differentiated is no
    relaxation, only the choice, so any solver could stand in its place.

    Biased: yes, except where f is linear and step → 0: it sees f's slope on one side of a change
        only. Its variance grows like 1/step. For a `KSubset` it also belongs to another law, as
        for `reparameterized`.
    Needs of f: a gradient.
    Calls of f: samples, with a gradient.

    Args:
        choice: a distribution with `perturb` and `choose`.
        f, rng, samples: as for `score_function`.
        step: λ > 0, in the units of logits per gradient of f. It does not depend on how the result
            is scaled before `backward`.

    Returns:
        The mean of f over the samples, to differentiate (once).

    Raises:
        TypeError, ValueError: as for `score_function`.

    Source: Niepert, Minervini & Franceschi, "Implicit MLE: Backpropagating Through Discrete
    Exponential Family Distributions" (2021); Domke, "Implicit Differentiation by Perturbation"
    (2010).
    """
    if others:
        raise unknown_keyword(perturbed, others)
    law = needs(choice, "perturbed", "perturb", "choose")
    allowed = "a finite number > 0"
    step = check_number("step", step, low=0.0, allowed=allowed, strict=True)
    refuse("estimators.perturbed")
    logits = law.perturb((check_samples(samples),), rng)
    noisy = stop_gradient(logits)
    sample = law.choose(noisy)
    values, slopes = values_and_slopes(partial(values_of, f), cast(sample, law.logits.dtype))
    target = law.choose(noisy - step * cast(slopes, noisy.dtype))
    path = along(law, (sample - target) / step * moving(logits), values)
    return mean(values + cast(path, values.dtype))
