"""Small problems for the estimators: scores, and functions of what is chosen."""

import torch

B = torch.tensor([0.2, -0.4, 1.0, 0.7, -1.5], dtype=torch.float64)
Y = torch.tensor([0.5, -1.0, 0.3, 1.2, 0.0], dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def cost(s):
    """Of degree four, so that no estimator is exact by luck."""
    n = s.shape[-1]
    b = B[:n] if isinstance(s, torch.Tensor) else B[:n].numpy()
    return ((s - b) ** 2).sum(-1) + (s @ b) ** 4 + 0.5 * (s**3 @ (b * b))


def square(s):
    return ((s - B[: s.shape[-1]]) ** 2).sum(-1) + (s @ B[: s.shape[-1]]) ** 2


def joint(s):
    """Of two factors together: (…, 2, n) to (…)."""
    return cost(s[..., 0, :]) * (1 + s[..., 1, :] @ B[: s.shape[-1]]) + cost(s[..., 1, :])
