"""The list of the slow cases names tests that are there, and a run can write it."""

from types import SimpleNamespace

import pytest

import slow
from places import TESTS


def test_each_listed_case_is_one_of_a_test_that_is_there():
    cases = slow.LISTED.read_text().splitlines()
    assert cases == sorted({*cases})
    for case in cases:
        path, _, function = case.partition("[")[0].rpartition("::")
        assert f"{function.rpartition('.')[2]}(" in (TESTS.parent / path).read_text(), case


@pytest.mark.parametrize(("status", "written"), [(0, "tests/a.py::b[1]\n"), (1, "before\n")])
def test_a_run_in_which_all_pass_writes_it(status, written, tmp_path, monkeypatch):
    listed = tmp_path / "slow.txt"
    listed.write_text("before\n")
    monkeypatch.setattr(slow, "LISTED", listed)
    monkeypatch.setattr(slow, "_seconds", {})
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    for case, seconds in (
        ("tests/a.py::b[1]", slow.SECONDS),
        ("tests/a.py::c", slow.SECONDS - 0.01),
    ):
        properties = [("seconds", seconds)]
        report = SimpleNamespace(when="teardown", nodeid=case, user_properties=properties)
        slow.pytest_runtest_logreport(report)
    slow.pytest_sessionfinish(None, status)
    assert listed.read_text() == written
    assert [*tmp_path.iterdir()] == [listed]
