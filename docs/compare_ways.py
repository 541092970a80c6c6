"""Compare ways to choose k of n by what the README's table says of them.

python docs/compare_ways.py prints, for each way, the largest error of a weight on four kinds of
scores, and what eight derivatives and transforms of PyTorch do: right, wrong, or an error. The
times in that table are those of `kofn bench --case attention`.
"""

import warnings
from collections.abc import Callable

import entmax
import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor
from torch.func import grad, hessian, jvp, vmap

import kofn
from kofn.commands.bench.recipes import Bisected, by_newton, straight_through

ROWS, LENGTH, K = 64, 256, 8
STEP = 1e-5  # of finite differences, in float64
LIMIT = 1e-4  # above it, an answer in float32 is called wrong


def soft_topk(x: Tensor) -> Tensor:
    return kofn.soft_topk(x, K)


def hard_topk(x: Tensor) -> Tensor:
    return kofn.soft_topk(x, K, hard=True)


def bisected(x: Tensor) -> Tensor:
    return Bisected.apply(x, K)


def sigmoids(x: np.ndarray) -> np.ndarray:
    """Solve each row in float64 by Brent's method, without its masked entries."""
    weights = np.zeros_like(x)
    for row, out in zip(x, weights, strict=True):
        kept = row > np.finfo(np.float32).min / 2
        z = row[kept]
        root = brentq(lambda t, z=z: expit(z - t).sum() - K, z.min() - 50, z.max() + 50, xtol=1e-13)
        out[kept] = expit(z - root)
    return weights


def largest(x: np.ndarray) -> np.ndarray:
    return (x >= np.sort(x)[:, -K, None]).astype(float)


def simplex(x: np.ndarray) -> np.ndarray:
    """Project each row onto the simplex in float64, by sorting."""
    z = -np.sort(-x)
    sums = np.cumsum(np.maximum(z, -1e300), -1) - 1
    count = (z * np.arange(1, x.shape[1] + 1) > sums).sum(-1, keepdims=True)
    return np.maximum(x - np.take_along_axis(sums, count - 1, -1) / count, 0)


WAYS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "torch.topk, straight-through": (straight_through(K), largest),
    "entmax.sparsemax (k = 1)": (entmax.sparsemax, simplex),
    "sigmoid, bisected": (bisected, sigmoids),
    "sigmoid, Newton, compiled": (by_newton(K), sigmoids),
    "kofn.soft_topk": (soft_topk, sigmoids),
    "kofn.soft_topk(hard=True)": (hard_topk, largest),
    "kofn.sparsemax": (kofn.sparsemax, simplex),
}


def kinds(seed: int = 0) -> dict[str, Tensor]:
    """Draw the four kinds of scores."""
    x = torch.randn(ROWS, LENGTH, generator=torch.Generator().manual_seed(seed))
    outlier, infinite, lowest = x.clone(), x.clone(), x.clone()
    outlier[:, 3] = 1e6
    infinite[:, 200:] = -torch.inf
    lowest[:, 200:] = torch.finfo(x.dtype).min
    return {"N(0, 1)": x, "one outlier": outlier, "-inf mask": infinite, "lowest mask": lowest}


def error(way: Callable, oracle: Callable, x: Tensor) -> str:
    got = way(x).double().numpy()
    difference = np.abs(got - oracle(x.double().numpy()))
    return "NaN" if np.isnan(difference).any() else f"{difference.max():.0e}"


def transforms(way: Callable[[Tensor], Tensor], c: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """Eight ways to ask for derivatives of f(x) = Σ c p(x)² / 2, or for p itself."""

    def f(x: Tensor) -> Tensor:
        return (c * way(x).square()).sum() / 2

    def backward(x: Tensor, twice: bool = False, f: Callable[[Tensor], Tensor] = f) -> Tensor:
        x = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(x), x, create_graph=twice)
        return torch.autograd.grad((g * c).sum(), x)[0] if twice else g

    return {
        "backward": backward,
        "double backward": lambda x: backward(x, twice=True),
        "func.grad": grad(f),
        "jvp": lambda x: jvp(f, (x,), (c,))[1],
        "func.hessian": lambda x: hessian(f)(x) @ c,
        "vmap": lambda x: vmap(way)(x.expand(2, -1))[0],
        "vmap(grad)": lambda x: vmap(grad(f))(x.expand(2, -1))[0],
        "compile, whole graph": lambda x: backward(x, f=torch.compile(f, fullgraph=True)),
    }


def truths(oracle: Callable, x: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
    """Differentiate the float64 oracle by central differences."""

    def f(z: np.ndarray) -> float:
        return float((c * oracle(z[None])[0] ** 2).sum() / 2)

    def slope(z: np.ndarray, way: np.ndarray, h: float) -> float:
        return (f(z + h * way) - f(z - h * way)) / (2 * h)

    unit = np.eye(len(x))
    first = np.array([slope(x, e, STEP) for e in unit])
    h = 1e-3
    second = np.array([(slope(x + h * c, e, h) - slope(x - h * c, e, h)) / (2 * h) for e in unit])
    return {
        "backward": first,
        "double backward": second,
        "func.grad": first,
        "jvp": first @ c,
        "func.hessian": second,
        "vmap": oracle(x[None])[0],
        "vmap(grad)": first,
        "compile, whole graph": first,
    }


def verdict(answer: Callable[[Tensor], Tensor], x: Tensor, truth: np.ndarray) -> str:
    torch.compiler.reset()
    try:
        got = answer(x).detach().double().numpy()
    except Exception:  # whatever a framework raises is an error to its user
        return "error"
    off = np.abs(got - truth).max()
    return "right" if off <= LIMIT * max(1.0, np.abs(truth).max()) else "wrong"


def main() -> None:
    warnings.simplefilter("ignore")
    drawn, short = kinds(), torch.linspace(-1, 1, 12)[torch.randperm(12)] * 1.37
    c = torch.linspace(0.5, -0.7, 12).cos() * torch.tensor([1.0, -1.0]).repeat(6)
    for name, (way, oracle) in WAYS.items():
        errors = ", ".join(f"{kind} {error(way, oracle, x)}" for kind, x in drawn.items())
        truth = truths(oracle, short.double().numpy(), c.double().numpy())
        marks = {t: verdict(run, short, truth[t]) for t, run in transforms(way, c).items()}
        print(f"{name}: error of a weight: {errors}")
        for mark in ("right", "wrong", "error"):
            print(f"  {mark}: {', '.join(t for t, m in marks.items() if m == mark) or 'none'}")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
