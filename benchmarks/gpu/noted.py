"""A pytest plugin: each outcome becomes a line of JSON in the file KOFN_GPU_NOTES at once."""

from __future__ import annotations

import json
import os
from typing import Any


class Notes:
    """Writes a line as soon as a test is over, so that a run that is cut leaves what it has."""

    def __init__(self, path: str) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._add(report.nodeid, report.outcome, report.duration, _reason(report))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._add(report.nodeid or "collection", "failed", 0.0, str(report.longrepr)[-400:])

    def _add(self, name: str, outcome: str, seconds: float, reason: str) -> None:
        note = dict(test=name, outcome=outcome, seconds=round(seconds, 3), reason=reason)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")


def _reason(report: Any) -> str:
    if report.outcome == "passed":
        return ""
    if isinstance(report.longrepr, tuple):  # of a test that was skipped
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longrepr))[:600]


def pytest_configure(config: Any) -> None:
    path = os.environ.get("KOFN_GPU_NOTES")
    if path and not hasattr(config, "workerinput"):  # xdist's workers tell the first process
        config.pluginmanager.register(Notes(path))
