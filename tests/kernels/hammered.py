"""Eight threads that call the same functions at once: a program that test_kernels_threads.py runs.

They begin with the first call of the process, for which libraries are loaded and tables filled.
Answers must be those of one thread, to the bit.
"""

import random
import sys
import sysconfig
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import kofn

THREADS = 8
X = np.random.default_rng(0).standard_normal((6, 50))
LONG = np.random.default_rng(1).standard_normal((1, 70_000)).astype(np.float32)


def _calls() -> list[Callable[[], Any]]:
    made: list[Callable[[], Any]] = [
        lambda link=link, dtype=dtype: kofn.soft_topk(X.astype(dtype), 5, link=link)
        for link in kofn.links.TABLE
        for dtype in ("float32", "float64")
    ]
    return [
        *made,
        lambda: kofn.soft_topk(X, 5, link=kofn.links.entmax(1.3)),
        lambda: kofn.soft_topk(LONG, 50),
        lambda: kofn.sparsemax(X),
        lambda: kofn.hard_topk(X, 4),
        lambda: np.stack(kofn.topk(X, 4)),
        lambda: kofn.quantile(X, 0.3, dim=-1),
        lambda: kofn.losses.entmax_loss(X, np.arange(6)),
        lambda: kofn.losses.topk_loss(X, X > 1),
        lambda: kofn.soft_knapsack(X, np.abs(X) + 0.1, 5.0),
        lambda: kofn.KSubset(X, 5).marginals(),
        lambda: kofn.KSubset(X, 5).sample(rng=np.random.default_rng(3)),
        lambda: kofn.Categorical(X).sample(rng=np.random.default_rng(3)),
        lambda: kofn.temperature_for(X, 5, gap=0.5),
    ]


def main(times: int) -> None:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert not sys._is_gil_enabled(), "kofn has turned Python's lock on"
    calls = _calls()
    found: list[list[tuple[int, Any]]] = [[] for _ in range(THREADS)]
    together = threading.Barrier(THREADS)

    def hammer(thread: int) -> None:
        order = list(range(len(calls))) * times
        random.Random(thread).shuffle(order)
        together.wait()
        found[thread] = [(each, calls[each]()) for each in order]

    threads = [threading.Thread(target=hammer, args=(thread,)) for thread in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    wanted = [call() for call in calls]
    for answers in found:
        assert len(answers) == times * len(calls), "a thread has ended with an error"
        for each, answer in answers:
            assert np.array_equal(answer, wanted[each]), each
    assert "torch" not in sys.modules, "PyTorch is imported for arrays of NumPy"


if __name__ == "__main__":
    main(int(sys.argv[1]))
