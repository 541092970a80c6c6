"""Threaded calls that signals interrupt: a program that test_kernels_threads.py runs.

What a thread still writes to must not be freed; none may wait for a caller who is gone; the next
call must be right.
"""

import random
import signal
import sys
import time

import torch

from kofn import KSubset, soft_topk


class Stop(Exception):
    """What the handler raises, between any two steps of Python."""


def stop(*_):
    raise Stop


def weights(x):
    leaf = x.clone().requires_grad_()
    p = soft_topk(leaf, 7.5)
    return p.detach(), torch.autograd.grad(p, leaf, x)[0]


def marginals(x):
    return (KSubset(x, 7).marginals(),)


def main(times):
    torch.set_num_threads(4)
    torch.manual_seed(0)
    calls = [
        (weights, torch.randn(20, 40_000)),  # threads take rows
        (weights, torch.randn(1, 500_000)),  # threads take parts of a row
        (marginals, torch.randn(64, 2_000)),
    ]
    wanted = [function(x) for function, x in calls]
    random.seed(0)
    signal.signal(signal.SIGALRM, stop)
    stopped = 0
    for i in range(times):
        function, x = calls[i % len(calls)]
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-4, 2e-2))
            for _ in range(1000):
                function(x)
        except Stop:
            stopped += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert stopped > 0.9 * times, stopped

    time.sleep(0.2)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1, "a thread spins"
    for (function, x), right in zip(calls, wanted, strict=True):
        for got, expected in zip(function(x), right, strict=True):
            assert torch.equal(got, expected)


if __name__ == "__main__":
    main(int(sys.argv[1]))
