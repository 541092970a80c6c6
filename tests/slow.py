"""The cases that take a second of a processor: `make test` leaves them to `make test-slow`.

They are two in a hundred cases and half of their time: what XLA, Inductor and Triton compile, and
processes that import PyTorch. `slow.txt` names them. `make slow` measures anew and writes that
file: as a plugin of pytest, this one adds the seconds of each case to its report. What `make
faults` plants is to be seen without them.
"""

import os

import pytest

from places import TESTS

LISTED = TESTS / "slow.txt"
SECONDS = 1
"""Of a processor, with what a case's own processes take: a case that took so many is listed."""


def leave_to_the_slow_run(items: list[pytest.Item]) -> None:
    """Mark the cases that the file lists."""
    listed = {*LISTED.read_text().splitlines()}
    for item in items:
        if item.nodeid in listed:
            item.add_marker(pytest.mark.slow)


def used() -> float:
    """The seconds of processors that this process and those it has waited for have used."""
    import resource  # which Windows has not

    of = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, of))


_start = 0.0
_seconds: dict[str, float] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    global _start
    _start = used()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    report = yield
    if call.when == "teardown":
        report.user_properties.append(("seconds", used() - _start))
    return report


def pytest_runtest_logreport(report) -> None:
    """Keep what a case took, here or in the process of pytest-xdist that ran it."""
    if report.when == "teardown":
        _seconds[report.nodeid] = dict(report.user_properties)["seconds"]


def pytest_sessionfinish(session, exitstatus) -> None:
    """Write the list, whole, if all tests have passed."""
    if "PYTEST_XDIST_WORKER" in os.environ or exitstatus:
        return
    slow = sorted(case for case, seconds in _seconds.items() if seconds >= SECONDS)
    part = LISTED.with_suffix(".part")
    part.write_text("".join(f"{case}\n" for case in slow))
    part.replace(LISTED)
