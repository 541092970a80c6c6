"""The script that compares two trees: plans, judgement, and that a changed formula is seen."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent / "same"


@pytest.fixture(autouse=True)
def room(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def test_a_plan_draws_each_operation_framework_and_order_and_is_the_same_each_time():
    import cases
    from operations import OPERATIONS

    plan = list(cases.plan("quick"))
    assert plan == list(cases.plan("quick"))
    assert len(set(plan)) == len(plan)
    cells = {(case.operation, case.framework, case.order) for case in plan}
    for operation in OPERATIONS:
        for framework, about in cases.FRAMEWORKS.items():
            for order in cases.orders_of(operation, framework, "quick") if about.quick else ():
                assert (operation, framework, order) in cells, (operation, framework, order)
    usual = {case for case in cases.plan("usual") if case.operation == "soft_topk"}
    for values in (cases.LINKS, cases.DTYPES, cases.LENGTHS, cases.ORDERS):
        assert all(any(value in case for case in usual) for value in values)
    assert all(cases.case_of(str(case)) == case for case in plan)
    names = list(map(str, plan))
    assert cases.chosen(names, "hard/torch/*") == [n for n in names if n.startswith("hard/torch/")]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_differs_is_told(dtype):
    from differences import CHANGED, GAINED, LOST, WITHIN, difference

    a = np.array([[1.0, np.nan, 0.0], [3.0, -np.inf, 1e-3]], dtype)
    record, name = [(dtype, a)], "soft_topk/torch/logistic/float32/3/vjp/rows"
    assert difference(name, record, [(dtype, a.copy())]) is None
    next_to = a.copy()
    next_to[1, 0] = np.nextafter(a[1, 0], 9, dtype=dtype)
    found = difference(name, record, [(dtype, next_to)])
    assert found.kind == CHANGED
    assert "1 of 6 places, by 1 ulp" in found.told
    assert "first [1, 0]" in found.told
    for changed in (-a, a[:1], np.where(np.isnan(a), 0, a), np.where(np.isinf(a), np.inf, a)):
        assert difference(name, record, [(dtype, changed.astype(dtype))]).kind == CHANGED
        assert difference(name, record, [(dtype, changed)], lambda: record).kind == CHANGED
    assert difference(name, record, [("bfloat16", a)]).kind == CHANGED
    assert difference(name, record, [(dtype, next_to)], lambda: record).kind == WITHIN
    far = [(dtype, a + np.array(1e-4, dtype))]
    assert difference(name, record, far, lambda: record).kind == CHANGED
    assert difference(name, far, record, lambda: record).kind == WITHIN
    error = ("ValueError", "k must be …")
    assert difference(name, error, error) is None
    assert difference(name, error, record).kind == GAINED
    assert difference(name, record, error).kind == LOST
    assert difference(name, error, ("ValueError", "k is …")).kind == CHANGED
    kept = "soft_topk/kept/logistic/float32/3/vjp/rows"
    more, less = [("int64", np.array(8))], [("int64", np.array(4))]
    assert difference(kept, more, less).kind == GAINED
    assert difference(kept, less, more).kind == CHANGED
    assert "- b" in difference("contract/errors", ["a", "b"], ["a", "c"]).told


@pytest.mark.full
def test_a_changed_formula_is_seen_and_an_unchanged_tree_is_not(tmp_path, monkeypatch):
    """On copies of the sources, without a repository."""
    import sides
    from differences import difference

    names = [f"soft_topk/torch/logistic/float32/129/{order}/rows" for order in ("value", "second")]
    pair = []
    for name in ("old", "new"):
        tree = tmp_path / name / "src"
        shutil.copytree(Path(__file__).parents[1] / "src", tree)
        pair.append(sides._ready(sides.Side(tree, tmp_path / name, name == "old")))
    old, new = sides.answers(pair, names, 1)
    assert all(isinstance(old[name], list) for name in names)
    assert not any(difference(name, old[name], new[name]) for name in names)
    file = pair[1].source / "kofn/formulas/answers.py"
    text = file.read_text(encoding="utf-8")
    changed = text.replace("upper, 1 - high, low)", "upper, 1 - high, 1.000001 * low)")
    assert changed != text
    file.write_text(changed, encoding="utf-8")
    old, new = sides.answers(pair, names, 1)
    wrong = [name for name in names if difference(name, old[name], new[name])]
    assert wrong == names[1:]


def test_names_are_listed():
    command = [sys.executable, str(HERE), "HEAD", "--quick", "--list", "--only", "softmax/jit"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("softmax/jit/-/")
