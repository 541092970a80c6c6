"""perturbed_argmax in float32 with smooth noise: sums on a lattice, held by nodes in float64.

lattice_loops.py has no step in common with these but the noise's own formulas.
"""

import math

import numpy as np
import pytest
import torch

from kofn import perturbed_argmax
from kofn.kernels.contract import KINDS, kind_of
from kofn.maps.argmax import quadrature
from kofn.maps.perturbed import NOISES
from pairs import pairwise

LATTICES = {
    name: KINDS[kind].kind.lattice
    for name, noise in NOISES.items()
    if (kind := kind_of(noise.inner)) is not None and KINDS[kind].kind.lattice
}


def sizes(noise):
    """Numbers of scores on both sides of each change of the nodes, and more."""
    *_, few, some, many = LATTICES[noise]
    return sorted({1, 2, 1000} | {n + i for n in (few, some) if n for i in (0, 1)}), many


def both(x, t, v, noise):
    """p, and the cotangents of scores and temperatures."""
    x, t = (each.clone().requires_grad_() for each in (x, t))
    p = perturbed_argmax(x, noise=noise, temperature=t)
    return p.detach(), *torch.autograd.grad(p, (x, t), v)


def assert_close(x, t, v, noise):
    """Weights to 6e-8, and to 1e-4 of themselves, where nodes in float32 lost all digits."""
    p, in_x, in_t = both(x, t, v, noise)
    wide, in_wide, in_wide_t = both(x.double(), t.double(), v.double(), noise)
    assert p.dtype is torch.float32
    error = (p.double() - wide).abs()
    assert error.max() <= 6e-8
    assert (error <= torch.where(wide > 1e-18, 1e-5, 1e-4) * wide + 1e-37).all()
    assert ((in_x.double() - in_wide).abs() <= 5e-6 * in_wide.abs().amax(-1)[:, None]).all()
    assert ((in_t.double() - in_wide_t).abs() <= 5e-6 * in_wide_t.abs() + 1e-12).all()


@pairwise(noise=LATTICES, spread=[0.0, 0.02, 1.0, 7.0])
def test_chances_and_their_derivatives(noise, spread, rng):
    for n in sizes(noise)[0]:
        x = torch.tensor(rng.standard_normal((3, n)) * spread, dtype=torch.float32)
        v = torch.tensor(rng.standard_normal((3, n)), dtype=torch.float32)
        assert_close(x, torch.tensor([1.0, 0.5, 2.0]), v, noise)


@pytest.mark.parametrize("noise", LATTICES)
def test_a_crowd(noise, rng):
    """Of so many equal scores the largest is nearly certain; one stands as far ahead of them."""
    many = sizes(noise)[1]
    for n in (many, many + 1):
        x, v = torch.zeros(1, n), torch.tensor(rng.standard_normal((1, n)), dtype=torch.float32)
        x[0, 0] = 4.0
        assert_close(x, torch.ones(1), v, noise)


@pytest.mark.parametrize("noise", LATTICES)
def test_the_far_end(noise):
    """Chances fall with the score down to the least number, and are 0 below; nothing is written
    beyond the last bin."""
    reach = LATTICES[noise][2]
    x = torch.linspace(0, -1.2 * reach, 4001)[None].requires_grad_()
    p = perturbed_argmax(x, noise=noise)
    assert (p.diff() <= 0).all()
    assert (p[x < -reach] == 0).all()
    least = p[x >= -reach].min().item()
    assert least < 1e-35
    cotangent = torch.where(p == 0, math.inf, 1.0).detach()
    (slope,) = torch.autograd.grad(p, x, cotangent)
    assert (slope.abs() <= 1e-6).all()


@pytest.mark.parametrize("framework", ["numpy", "torch"], indirect=True)
@pytest.mark.parametrize("noise", LATTICES)
@pytest.mark.usefixtures("kernels_on")
def test_masked_scores_and_lost_rows(noise, framework, monkeypatch):
    """Masked scores have no chance; a row with a bad temperature is NaN where it is not masked."""
    least, inf = float(np.finfo(np.float32).min), math.inf
    x = np.array(
        [[0.3, -inf, 0.1], [least, 1.0, 0.5], [least] * 3, [-inf, 2.0, -inf], [1, -inf, 0]]
    )
    t = np.array([1.0, 2.0, 1.0, 1.0, -1.0])
    with monkeypatch.context() as patch:
        patch.setattr(quadrature, "nodes", None)  # of which there is no need
        p = framework.numpy(
            perturbed_argmax(
                framework.array(x, "float32"),
                noise=noise,
                temperature=framework.array(t, "float32"),
            )
        )
    for row, others in ((0, [0, 2]), (1, [1, 2])):
        assert p[row, others] == pytest.approx(
            perturbed_argmax(x[row, others], noise=noise, temperature=t[row]), abs=1e-7
        )
    assert (p[[0, 1], [1, 0]] == 0).all()
    assert np.array_equal(p[2:], [[0, 0, 0], [0, 1, 0], [math.nan, 0, math.nan]], equal_nan=True)
