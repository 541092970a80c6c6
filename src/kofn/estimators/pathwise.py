"""Estimators that differentiate f at a sample, and the sample with respect to the logits."""

from __future__ import annotations

from typing import Any, Never

from kofn.arrays.kinds import Array
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT
from kofn.estimators.protocol import Distribution, Function, adopted, check_samples, mean, values_of
from kofn.estimators.surrogate_samples import (
    gumbel_rao_through,
    marginals_through,
    reinmax_through,
    relaxed_through,
)


def reparameterized(
    choice: Distribution[ArrayT],
    f: Function[ArrayT],
    rng: Any = None,
    *,
    samples: int = 1,
    temperature: float | Array | None = None,
    hard: bool = False,
    **others: Never,
) -> ArrayT:
    """Return mean f(g(noise, parameters)), differentiated through g.

    For a `Normal` (or what else has `rsample`) the samples are exact. For discrete choices they
    are relaxed: Gumbel-softmax, its binary twin, or soft_topk of perturbed logits; with hard=True
    f sees the hard sample and the gradient is the relaxed one's (straight-through Gumbel-softmax).

    Biased: no for `rsample`; yes for relaxed samples, less at a lower temperature, whose variance
        grows like 1/temperature. For a `KSubset` also because Gumbel noise draws from
        `PlackettLuce`.
    Needs of f: a gradient; and, for relaxed samples without hard=True, to accept them.
    Calls of f: samples, with a gradient.

    Args:
        choice: a distribution with `rsample`, or with `perturb`, `choose` and `relax`.
        f, rng, samples: as for `score_function`. What f returns may have any shape after the
            first axis.
        temperature: > 0, of relaxed samples; 1 if None.
        hard: as above.

    Returns:
        The mean of f over the samples, to differentiate.

    Raises:
        TypeError, ValueError: as for `score_function`; `temperature` or `hard` for a distribution
            that needs no relaxation.

    Source: Kingma & Welling (2014); Jang, Gu & Poole (2017); Maddison, Mnih & Teh (2017).

    Example:
        >>> import torch
        >>> from kofn import Normal, estimators
        >>> mean = torch.tensor(1.0, requires_grad=True)
        >>> rng = torch.Generator().manual_seed(0)
        >>> law = Normal(mean[None], torch.ones(1))
        >>> estimators.reparameterized(law, lambda z: z[..., 0] ** 2, rng, samples=1000).backward()
        >>> mean.grad.round(decimals=1)  # exactly 2
        tensor(2.)
    """
    if others:
        raise unknown_keyword(reparameterized, others)
    choice, shape = adopted(choice), (check_samples(samples),)
    if not hasattr(choice, "rsample"):
        temperature = 1.0 if temperature is None else temperature
        z = relaxed_through(choice, shape, rng, temperature=temperature, hard=hard)
    elif temperature is not None or hard:
        raise ValueError(
            f"temperature and hard are for relaxed samples; those of {type(choice).__name__} "
            "are exact"
        )
    else:
        z = choice.rsample(shape, rng)
    return mean(values_of(f, z))


def straight_through(
    choice: Distribution[ArrayT],
    f: Function[ArrayT],
    rng: Any = None,
    *,
    samples: int = 1,
    **others: Never,
) -> ArrayT:
    """Return mean f(s), with its gradient passed to the marginals (SIMPLE for a `KSubset`).

    Biased: yes, unless f is linear. The bias depends on how f is defined between the samples: s²
        equals s at samples, but not elsewhere.
    Needs of f: a gradient.
    Calls of f: samples, with a gradient.

    Args:
        choice: a distribution with `sample` and `marginals`.
        f, rng, samples: as for `reparameterized`.

    Source: Bengio, Léonard & Courville (2013); Ahmed et al., "SIMPLE" (2023).
    """
    if others:
        raise unknown_keyword(straight_through, others)
    return mean(values_of(f, marginals_through(choice, (check_samples(samples),), rng)))


def gumbel_rao(
    choice: Distribution[ArrayT],
    f: Function[ArrayT],
    rng: Any = None,
    *,
    samples: int = 1,
    temperature: float | Array = 1.0,
    draws: int = 10,
    **others: Never,
) -> ArrayT:
    """Return `reparameterized(hard=True)`, averaged over `draws` of each sample's noise.

    Biased: yes, exactly as straight-through Gumbel-softmax is.
    Needs of f: a gradient.
    Calls of f: samples, with a gradient; the draws are of noise only.

    Args:
        choice: a `Categorical` or `Bernoulli`.
        f, rng, samples: as for `reparameterized`.
        temperature, draws: as for `gumbel_rao_through`.

    Source: Paulus, Maddison & Krause (2021).
    """
    if others:
        raise unknown_keyword(gumbel_rao, others)
    shape = (check_samples(samples),)
    z = gumbel_rao_through(choice, shape, rng, temperature=temperature, draws=draws)
    return mean(values_of(f, z))


def reinmax(
    choice: Distribution[ArrayT],
    f: Function[ArrayT],
    rng: Any = None,
    *,
    samples: int = 1,
    temperature: float | Array = 1.0,
    **others: Never,
) -> ArrayT:
    """Return mean f(s) with ReinMax's second-order gradient.

    Biased: yes, except where f is quadratic (at temperature 1).
    Needs of f: a gradient.
    Calls of f: samples, with a gradient.

    Args:
        choice: a `Categorical` or `Bernoulli`.
        f, rng, samples: as for `reparameterized`.
        temperature: as for `reinmax_through`.

    Source: Liu, Dong, Liu, Yu & Gao (2023).
    """
    if others:
        raise unknown_keyword(reinmax, others)
    z = reinmax_through(choice, (check_samples(samples),), rng, temperature=temperature)
    return mean(values_of(f, z))
