"""Numbers below the least normal one: XLA takes them for 0 where it compares or computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kofn

ROWS = np.array(
    [
        [1e-40, 3e-40, -0.0, 0.0, 2e-40, -1e-42],
        [0.0, -1e-40, -3e-40, -2e-40, 1e-45, -0.0],
        [1e-38, 1.1e-38, 2e-38, 1e-45, 0.0, 1.2e-38],
    ],
    np.float32,
)
MASK = np.array([True, True, True, True, True, False])
PTR = np.array([0, 3, 6])
EACH = {
    "topk": lambda x, m, k: kofn.topk(x, 4).indices,
    "topk of the smallest": lambda x, m, k: kofn.topk(x, 4, largest=False).indices,
    "topk, mask": lambda x, m, k: kofn.topk(x, 4, mask=m).indices,
    "topk of the smallest, mask": lambda x, m, k: kofn.topk(x, 4, largest=False, mask=m).indices,
    "hard_topk": lambda x, m, k: kofn.hard_topk(x, 3),
    "hard_topk, k per row": lambda x, m, k: kofn.hard_topk(x, k),
    "soft_topk(hard=True)": lambda x, m, k: kofn.soft_topk(x, 2, hard=True),
    "soft_topk(hard=True), mask": lambda x, m, k: kofn.soft_topk(x, 2, hard=True, mask=m),
    "segment_hard_topk": lambda x, m, k: kofn.segment_hard_topk(x[0], 2, ptr=0 * m[0] + PTR),
    "topk_gates": lambda x, m, k: kofn.topk_gates(x, 3)[1],
    "segment_topk": lambda x, m, k: kofn.segment_topk(x.T, 4, ptr=0 * m[0] + PTR).indices,
}
"""Functions of scores, a mask and k per row."""
K = np.array([0.0, 1.0, 2.0], np.float32)


@pytest.mark.parametrize("name", EACH)
def test_jax_chooses_the_same_entries_as_numpy(name):
    function = EACH[name]
    wanted = function(ROWS, MASK, K)
    given = (jnp.asarray(ROWS), jnp.asarray(MASK), jnp.asarray(K))
    for call in (function, jax.jit(function)):
        np.testing.assert_array_equal(call(*given), wanted)


def test_as_lax_top_k():
    x = jnp.asarray(np.abs(ROWS))
    np.testing.assert_array_equal(kofn.topk(x, 6).indices, jax.lax.top_k(x, 6)[1])


def test_quantiles_are_next_to_the_right_place():
    x = jnp.asarray(np.concatenate([ROWS, np.full((3, 6), 1.0, np.float32)], -1))
    np.testing.assert_array_equal(kofn.quantile(x, 0.9, dim=-1), np.ones(3))
