"""Second derivatives on JAX do nothing for hard rows, whose slopes underflow, where there are none.

What is for them stands in branches of `lax.cond`. So a program is traced, kofn's operators written
out that no kernel serves, and what stands in no branch is counted.
"""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.interpreters import partial_eval

import kofn
from kofn.adapters.jax.operators import RULES, primitive_of
from support import TWO_TAILS

FUNCTIONS = {
    "weights": lambda x, link: kofn.soft_topk(x, 2.0, link=link),
    "logarithms": lambda x, link: kofn.log_soft_topk(x, 2.0, link=link),
    "threshold": lambda x, link: kofn.soft_topk_threshold(x, 2.0, link=link),
    "sum": lambda x, link: kofn.soft_topk_sum(x, 2.0, link=link),
}
SUMS = {"weights": 6, "logarithms": 6, "threshold": 4, "sum": 3}
"""How often a row is reduced: ΣF′, two means of the tangents by it, and what the formula sums."""
X, V, W = np.random.default_rng(0).standard_normal((3, 2, 7))


def bent(f):
    """The gradient of a sum of gradients of a sum of f."""

    def total(x):
        answers = f(x)
        return (answers * (V if answers.ndim == 2 else V[:, 0])).sum()

    return jax.grad(lambda x: (jax.grad(total)(x) * W).sum())


def steps(jaxpr):
    """The names of the primitives that always run."""
    operators = {primitive_of(operator): operator for operator in RULES}
    jaxpr, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    used = {str(each) for equation in jaxpr.eqns for each in equation.invars}
    used |= {str(each) for each in jaxpr.outvars}
    for equation in jaxpr.eqns:
        operator = operators.get(equation.primitive)
        inner = [getattr(each, "jaxpr", each) for each in jaxprs_in_params(equation.params)]
        if operator is not None and operator.kernel is None:
            plain = partial(operator.plain, **equation.params)
            whole = jax.make_jaxpr(plain)(*(each.aval for each in equation.invars)).jaxpr
            wanted = [str(out) in used for out in equation.outvars]
            inner = [partial_eval.dce_jaxpr(whole, wanted)[0]]
        if inner and equation.primitive.name != "cond":
            for each in inner:
                yield from steps(each)
        else:
            yield equation.primitive.name


@pytest.mark.parametrize("link", TWO_TAILS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_hard_rows_need_stands_in_branches(name, link, kernels_on):
    jaxpr = jax.make_jaxpr(bent(lambda x: FUNCTIONS[name](x, link)))(jnp.asarray(X)).jaxpr
    found = Counter(steps(jaxpr))
    reduced = sum(count for step, count in found.items() if step.startswith("reduce"))
    assert reduced <= SUMS[name]
    # Around a threshold by a kernel, array code counts scores of +inf, if there are any.
    assert found["cond"] == (1 if name in ("weights", "logarithms") else 2)
