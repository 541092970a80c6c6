"""perturbed_argmax by the CPU kernels: the answers of array code, and where they serve."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradgradcheck

from kofn import links, perturbed_argmax
from kofn.maps.argmax import nodes as argmax_nodes
from kofn.maps.argmax import quadrature as argmax_quadrature
from kofn.maps.perturbed import NOISES

SINGLE, DOUBLE = ("float32", 1e-6), ("float64", 1e-12)
SHAPES = [(n, spread, (SINGLE, DOUBLE)) for n, spread in ((2, 1.0), (30, 0.05))]
WIDE, REST_OF_WIDE = (
    [(700, 1.0, (one,)), (700, 30.0, (other,))]
    for one, other in ((SINGLE, DOUBLE), (DOUBLE, SINGLE))
)
"""Entries of a row, their spread, and precisions: of wide rows array code takes seconds."""
KERNELS = (*NOISES, links.entmax(1.5))


@pytest.mark.parametrize("noise", KERNELS, ids=str)
@pytest.mark.parametrize(
    ("framework", "shapes"),
    [
        ("numpy", SHAPES + WIDE),
        pytest.param("numpy", REST_OF_WIDE, marks=pytest.mark.full),
        ("torch", SHAPES),
        pytest.param("torch", WIDE + REST_OF_WIDE, marks=pytest.mark.full),
    ],
    ids=["numpy", "numpy, the rest", "torch", "torch, wide"],
    indirect=["framework"],
)
def test_kernels_meet_array_code(framework, shapes, noise, monkeypatch, rng):
    """Also in rows so wide that Π Φ underflows where the search for nodes begins."""
    for n, spread, precisions in shapes:
        x, v = rng.standard_normal((5, n)) * spread, rng.standard_normal((5, n))
        x[0, -1], x[1, 0], x[2] = -math.inf, math.inf, -math.inf
        for dtype, close in precisions:
            found = []
            for choice in ("on", "reference"):
                monkeypatch.setenv("KOFN_KERNELS", choice)
                array = framework.array(x.astype("f4"), dtype)
                answer = [framework.numpy(perturbed_argmax(array, noise=noise))]
                if framework.name == "torch":
                    answer += framework.vjp(
                        lambda x: perturbed_argmax(x, noise=noise),
                        (array,),
                        framework.array(v, dtype),
                    )
                found.append(answer)
            for one, other in zip(*found, strict=True):
                assert np.max(np.abs(one - other)) <= close * max(1, np.max(np.abs(other)))


@pytest.mark.usefixtures("kernels_on")
def test_kernels_serve_eager_calls_and_first_derivatives_alone(monkeypatch):
    def fail(*arguments):
        raise AssertionError("array code evaluates the noise")

    x = torch.randn(3, 20, requires_grad=True)
    with monkeypatch.context() as patch:
        for module in (argmax_nodes, argmax_quadrature):
            patch.setattr(module, "hazard", fail)
        patch.setattr(argmax_nodes, "log_cdf", fail)
        for noise in KERNELS:
            for leaf in (x, x.detach().double().requires_grad_()):
                perturbed_argmax(leaf, noise=noise).square().sum().backward()
                perturbed_argmax(leaf.detach().numpy(), noise=noise)
    x = x.detach().double().requires_grad_()
    assert gradgradcheck(perturbed_argmax, x, fast_mode=True)


def test_rows_of_noise_on_several_threads(monkeypatch, rng):
    x = rng.standard_normal((40, 300)).astype("f4")
    alone = [perturbed_argmax(row, noise="logistic") for row in x]
    monkeypatch.setenv("KOFN_NUM_THREADS", "3")
    assert np.array_equal(perturbed_argmax(x, noise="logistic"), alone)


def test_the_rules_are_gausss():
    for count in (6, 12):
        places, widths = (np.sort(part) for part in argmax_nodes._gauss(count))
        exact = np.polynomial.legendre.leggauss(count)
        assert 2 * places - 1 == pytest.approx(exact[0], abs=1e-15)
        assert 2 * widths == pytest.approx(np.sort(exact[1]), abs=1e-15)
