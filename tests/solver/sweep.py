"""A sweep of every function over scores that are subnormal, next to it, or one ulp apart.

`python tests/sweep.py NAME FRAMEWORK SHARE` runs one part of it: test_solver_sweep.py gives each a
process and a time, so that a search that does not end fails.
"""

import sys
from itertools import product

import numpy as np
import torch

import kofn
from kofn import distributed, streaming
from support import LINKS, Framework

DTYPES = {
    "numpy": ("float16", "float32", "float64"),
    "torch": ("float16", "bfloat16", "float32", "float64"),
    "jax": ("float16", "bfloat16", "float32", "float64"),
}
ALPHAS = (1.001, 1.1, 1.5, 2.5, 10.0, 100.0)
EVERY = [*LINKS, *(kofn.links.entmax(alpha) for alpha in ALPHAS)]
TEMPERATURES = (1.0, 1e-30, 1e-38, 1e30)
DIGITS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 4e-6, "float64": 4e-12}
OF_TIES = 1.0 + 1e-9
"""The greatest weight, but for rounding, of answers in which equal scores differ."""


def numbers(dtype):
    """(smallest subnormal, smallest normal, eps, greatest) of a dtype."""
    info = torch.finfo(getattr(torch, dtype))
    return info.smallest_normal * info.eps, info.smallest_normal, info.eps, info.max


def rows(rng, dtype, n=6):
    """Rows of n scores as float64: subnormal, around the least normal number, one ulp apart."""
    unit, small, eps, most = numbers(dtype)
    for scale in (unit, 16 * unit, small / 8, small, 16 * small):
        yield rng.integers(-4, 5, n) * scale
    for start in (1.0, -3.0, most / 8):
        yield start * (1 + eps * rng.permutation(n))
    yield np.where(np.arange(n) < 3, small, -unit)
    yield np.array([unit, -np.inf, 0.0, np.inf, -most, small])


class Sweep:
    """Rows of one framework, and what every answer has to hold."""

    def __init__(self, framework, share):
        self.made, self.share = Framework(framework), share
        self.rng = np.random.default_rng(1)
        self.name, self.failures, self.count = framework, [], 0

    def draw(self, *choices):
        """Every dtype and row with a share of all combinations of the choices."""
        for dtype in DTYPES[self.name]:
            for row in rows(self.rng, dtype):
                x = self.array(row, dtype)
                for chosen in product(*choices):
                    if self.rng.random() < self.share:
                        yield dtype, row, x, chosen

    def array(self, row, dtype):
        if self.name == "torch":
            return torch.tensor(row, dtype=getattr(torch, dtype))
        if self.name == "jax":
            import jax.numpy as jnp

            return jnp.asarray(row).astype(dtype)
        return row.astype(dtype)

    def plain(self, answer):
        if self.name == "torch":
            return answer.detach().double().numpy()
        return np.asarray(answer).astype(float)

    def hold(self, what, dtype, row, p, wanted=None, most=1.0):
        """Entries in [0, most], their sum, and their order."""
        self.count += 1
        p = self.plain(p)
        said = (what, dtype, row.tolist())
        if not ((p >= 0) & (p <= most * (1 + DIGITS[dtype]))).all():
            self.failures.append((*said, "entries", p.tolist()))
        elif wanted is not None and abs(p.sum() - wanted) > DIGITS[dtype] * max(wanted, 1):
            self.failures.append((*said, "sum", float(p.sum()), wanted))
        elif most == 1.0:
            fallen = np.diff(p[np.argsort(row, kind="stable")])
            if (fallen < -2 * numbers(dtype)[2]).any():
                self.failures.append((*said, "order", p.tolist()))


def is_steep(link):
    """Whether weights rise from 0 too steeply for T·z to hold small ones: their sum is not k."""
    return isinstance(link, kofn.Link) and (link.alpha or 0) > 2


def live(dtype, row):
    return row > -numbers(dtype)[3] / 2


def soft(s):
    for dtype, row, x, (link, k, t) in s.draw(EVERY, (1e-3, 1, 2.5, 5.999, 6), TEMPERATURES):
        number = live(dtype, row).sum()
        wanted = None if is_steep(link) else min(k, number)
        how = {"link": link, "temperature": t}
        s.hold(f"soft_topk {link} {k} {t}", dtype, row, kofn.soft_topk(x, k, **how), wanted)
        if not is_steep(link) and s.rng.random() < 0.3:
            hard = kofn.soft_topk(x, k, hard=True, **how)
            s.hold(f"hard {link} {k} {t}", dtype, row, hard, min(k, number), OF_TIES)


def others(s):
    for dtype, row, x, (link, k, t) in s.draw(EVERY, (1, 3), TEMPERATURES):
        how = {"link": link, "temperature": t}
        theta, value = kofn.soft_topk_threshold(x, k, **how), kofn.soft_topk_sum(x, k, **how)
        if np.isnan(s.plain(theta)).any() or (np.isnan(s.plain(value)).any()):
            s.failures.append((f"threshold, sum {link} {k} {t}", dtype, row.tolist()))
        gates, _ = kofn.topk_gates(x, k, **how)
        s.hold(f"gates {link} {k} {t}", dtype, row, gates, most=1.001)
        row_of = s.array(np.where(row > 0, 1.0, 0.0), dtype)
        kofn.fenchel_young_loss(x, row_of, link=link, temperature=t)
        kofn.losses.topk_loss(x, row_of, temperature=t)


def softmaxes(s):
    for dtype, row, x, (alpha, t) in s.draw((1.0, 2.0, *ALPHAS), TEMPERATURES):
        found = kofn.entmax(x, alpha, temperature=t)
        s.hold(f"entmax {alpha} {t}", dtype, row, found, None if alpha > 2 else 1.0)
        s.hold(f"softmax {t}", dtype, row, kofn.softmax(x, temperature=t), 1.0)
        s.hold(f"sparsemax {t}", dtype, row, kofn.sparsemax(x, temperature=t), 1.0)
        ids = s.array(np.array([0, 0, 0, 0, 0, 0]), "int64")
        found = kofn.segment_entmax(x, alpha, segment_ids=ids, num_segments=1, temperature=t)
        s.hold(f"segment_entmax {alpha} {t}", dtype, row, found, None if alpha > 2 else 1.0)


def alphas(s):
    """An alpha per row."""
    for dtype, row, x, (k, t) in s.draw((1e-3, 1, 5.999, 6 - 1e-6), TEMPERATURES):
        many = torch.linspace(1.001, 2.0, 9, dtype=torch.float64)
        link = kofn.links.entmax(many.to(x.dtype if x.dtype.itemsize > 2 else torch.float32))
        found = kofn.soft_topk(x.expand(9, -1), k, link=link, temperature=t)
        number = min(k, live(dtype, row).sum())
        for each, alpha in zip(found, many, strict=True):
            s.hold(f"alpha {alpha} {k} {t}", dtype, row, each, number)


def knapsack(s):
    for dtype, row, x, (link, share, t) in s.draw(LINKS, (1e-3, 0.4, 0.999), TEMPERATURES):
        if dtype in ("float16", "bfloat16"):
            continue
        costs = 10.0 ** s.rng.uniform(-6, 6, row.size)
        costs[row == np.inf] = 1e-6
        c = s.array(costs, dtype)
        paid = s.plain(c)
        budget = float(share * paid[live(dtype, row)].sum())
        how = {"link": link, "temperature": t}
        p = kofn.soft_knapsack(x, c, budget, **how)
        s.hold(f"knapsack {link} {t} {costs.tolist()}", dtype, row, p, most=OF_TIES)
        spent = float((s.plain(p) * paid).sum())
        # A price is two numbers: what it rounds off scores, in temperatures, weights are off by.
        rounding = np.abs(row[np.isfinite(row)]).max() * numbers(dtype)[2] ** 2
        reached = rounding < DIGITS[dtype] * t
        if reached and abs(spent - budget) > 4 * DIGITS[dtype] * budget:
            s.failures.append((f"knapsack {link} {t} {budget}", dtype, row.tolist(), paid, spent))
        kofn.soft_knapsack_threshold(x, c, budget, **how)
        hard = s.plain(kofn.soft_knapsack(x, c, budget, hard=True, **how))
        if (hard * paid).sum() > budget * (1 + 1e-6):
            s.failures.append(("hard knapsack", dtype, row.tolist(), hard.tolist()))


def subsets(s):
    for dtype, row, x, (k,) in s.draw((1, 3, 5)):
        if not np.isfinite(row).all() or dtype in ("float16", "bfloat16"):
            continue
        chosen = kofn.KSubset(x, k)
        number = live(dtype, row).sum()
        s.hold(f"marginals {k}", dtype, row, chosen.marginals(), min(k, number))
        if s.name != "jax":
            sample = chosen.sample()
            s.hold(f"sample {k}", dtype, row, sample, min(k, number), most=OF_TIES)
            assert not np.isnan(s.plain(chosen.log_prob(sample))).any()


def streams(s):
    for dtype, row, x, (link, k, t) in s.draw(EVERY, (1e-3, 1, 2.5, 5.999, 6), TEMPERATURES):
        wanted = None if is_steep(link) else min(k, live(dtype, row).sum())
        found = streaming.soft_topk(x, k, link=link, temperature=t)
        s.hold(f"streaming {link} {k} {t}", dtype, row, found, wanted)
        hard, wanted = streaming.hard_topk(x, k), min(k, live(dtype, row).sum())
        s.hold("streaming hard", dtype, row, hard, wanted, OF_TIES)


def shards(s):
    """Rows of which the one process of a group has all: the code of rows in several."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    for dtype, row, x, (link, k, t) in s.draw(EVERY, (1e-3, 1, 2.5, 5.999), TEMPERATURES):
        wanted = None if is_steep(link) else min(k, live(dtype, row).sum())
        found = distributed.soft_topk(x[None], k, link=link, temperature=t)[0]
        s.hold(f"shards {link} {k} {t}", dtype, row, found, wanted)


SWEEPS = {
    each.__name__: each
    for each in (soft, others, softmaxes, alphas, knapsack, subsets, streams, shards)
}
ONLY = {"alphas": ("torch",), "shards": ("torch",), "streams": ("numpy", "torch")}

if __name__ == "__main__":
    if sys.argv[2] == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    sweep = Sweep(sys.argv[2], float(sys.argv[3]))
    with np.errstate(all="ignore"):
        SWEEPS[sys.argv[1]](sweep)
    print(sweep.count, "answers;", len(sweep.failures), "failures")
    for failure in sweep.failures[:20]:
        print(*failure)
    sys.exit(bool(sweep.failures))
