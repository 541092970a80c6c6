"""`kofn select`: what it writes, what it refuses, and that it leaves nothing half done."""

import dataclasses
import importlib
import importlib.util
import json
import os
import re
import signal
import unicodedata

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from kofn.commands import app, files, terminal
from kofn.commands.files import InputError
from kofn.commands.select import compare, report
from kofn.commands.select import table as tables
from kofn.commands.terminal import TwoBars
from kofn.feature_selection import SoftTopKSelector

FILES = ["selection.json", "selection.png"]
QUICK = ["--splits", "1", "--steps", "3"]


def run(*arguments):
    return CliRunner().invoke(app.app, ["select", *map(str, arguments)])


def table(rows=60, task="classification", **more):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(rows, 6)), columns=list("abcdef"))
    signal_ = frame["b"] + frame["e"]
    frame["label"] = signal_ if task == "regression" else np.where(signal_ > 0, "up", "down")
    return frame.assign(**more)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a good table, data.csv, in it; small forests."""
    for forest in (compare.RandomForestClassifier, compare.RandomForestRegressor):
        monkeypatch.setattr(forest.__init__, "__defaults__", (5,))  # trees
    monkeypatch.chdir(tmp_path)
    table().to_csv("data.csv", index=False)
    return tmp_path


def refused(*arguments):
    """The one line on standard error of a run that ends with status 2 and writes nothing."""
    before = sorted(os.listdir())
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert sorted(os.listdir()) == before
    (line,) = result.stderr.splitlines()
    assert line.startswith("kofn: ")
    return line


def test_digits_without_arguments(here, monkeypatch):
    whole = tables.digits_table()
    assert whole.X.shape == (1797, 64)
    part = dataclasses.replace(whole, X=whole.X[:200], y=whole.y[:200])
    monkeypatch.setattr(tables, "digits_table", lambda: part)
    monkeypatch.setattr(tables, "PLANTED_ROWS", 60)
    monkeypatch.setattr(tables, "PLANTED_COLUMNS", 12)
    result = run("--splits", 1, "--steps", 3)
    assert result.exit_code == 0, result.output
    found = json.loads((here / "kofn-select" / "selection.json").read_text())
    digits, planted = found["tables"]
    about = [digits[name] for name in ("table", "k", "columns", "rows")]
    assert about == ["digits", 16, 64, 200]
    assert len(digits["chosen"]) == 16
    assert "16 of 64" in result.stdout
    assert "row " in result.stdout
    assert (planted["table"], planted["k"], planted["rows"]) == ("planted interactions", 5, 60)
    assert planted["planted"] == ["x0", "x1", "x2", "x3", "x4"]
    whole = planted["methods"][0]
    assert (whole["method"], whole["planted_found"]) == ("all columns", [5])
    assert "5 of 12" in result.stdout
    assert "found" in result.stdout


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_table_of_ones_own(here, task):
    table(task=task).to_csv("data.csv", index=False)
    numbers = ("-k", 2, "--seed", 3, "--splits", 2, "--steps", 30)
    result = run("data.csv", "--target", "label", *numbers)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir("kofn-select")) == FILES
    found = json.loads((here / "kofn-select" / "selection.json").read_text())
    assert found["task"] == task
    assert {each["column"] for each in found["chosen"]} == {"b", "e"}
    assert found["selector"]["steps"] == 30
    names = [each["method"] for each in found["methods"]]
    assert names[:3] == ["all columns", "soft_topk", "linear head"]
    assert names[3:] == ["RFE", "L1", "forest", "forest RFE", "k best", "random"]
    assert len(names) == compare.METHODS
    for name in names:
        assert name in result.stdout
    ours = found["methods"][1]["held_out"]["RBF SVM"]
    for method in found["methods"]:
        scores = method["held_out"]["RBF SVM"]
        differences = np.subtract(scores["splits"], ours["splits"])
        assert len(differences) == 2
        assert scores["mean"] == pytest.approx(np.mean(scores["splits"]))
        assert scores["minus_soft_topk"]["mean"] == pytest.approx(differences.mean())
        assert scores["minus_soft_topk"]["spread"] == pytest.approx(differences.std(ddof=1))
    assert (here / "kofn-select" / "selection.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_result(here):
    results = []
    for out, seed in (("one", 0), ("two", 0), ("three", 1)):
        arguments = ("--target", "label", "-k", 2, "--out", out, "--seed", seed)
        assert run("data.csv", *arguments, *QUICK).exit_code == 0
        found = json.loads((here / out / "selection.json").read_text())
        del found["seconds"], found["seed"]
        results.append(found)
    assert results[0] == results[1] != results[2]


def test_nothing_is_fitted_on_held_out_rows(monkeypatch):
    seen = []

    def record(X, y, k, seed):
        seen.append((X.mean(0), len(y)))
        return np.arange(k)

    monkeypatch.setattr(compare, "_draw", record)

    X = np.random.default_rng(0).normal(5.0, 3.0, size=(40, 4))
    data = tables.Table("t", X, X[:, 0], list("abcd"), "y", "regression", [])
    selector = SoftTopKSelector(2, steps=2)
    compare.compare(data, 2, selector=selector, splits=2, seed=0, tell=lambda *now: None)
    for centre, rows in seen:
        # Standardised by the training rows themselves: over all rows the mean would not be 0.
        np.testing.assert_allclose(centre, 0, atol=1e-12)
        assert rows == 30
    assert len(seen) == 2


def test_force_overwrites_and_its_absence_does_not(here):
    arguments = ("data.csv", "--target", "label", "-k", 2, "--out", "kept", *QUICK)
    (here / "kept").mkdir()
    (here / "kept" / "selection.png").write_text("mine")
    assert "selection.png exists; add --force" in refused(*arguments)
    assert (here / "kept" / "selection.png").read_text() == "mine"
    assert run(*arguments, "--force").exit_code == 0
    assert sorted(os.listdir("kept")) == FILES
    assert (here / "kept" / "selection.png").read_bytes().startswith(b"\x89PNG")


NUMBERS = np.arange(60.0)

BAD_TABLES = {
    "empty": (b"", "is empty"),
    "header only": (b"a,b,label\n", "has a header but no rows"),
    "not text": (b"\xff\xfe\x00,\x80\n1,2\n", "cannot be read as CSV"),
    "ragged": (b"a,b,label\n1,2,3\n1,2,3,4\n", "cannot be read as CSV"),
    "rows that are all longer": (b"a,b,label\n" + b"9,1,2,3\n" * 30, "Expected 3 fields in line 2"),
    "a comma at every end": (b"a,b,label\n" + b"1,2,3,\n" * 30, "Expected 3 fields in line 2"),
    "words": (table(city=[f"x{i}" for i in range(60)]), "'city' has 60 different words"),
    "missing": (
        table(c=[np.nan] + [1.0] * 59),
        "missing values in 'c'; add --missing drop (their rows) or --missing median",
    ),
    "infinite": (table(d=[np.inf] + [1.0] * 59), "infinite values in 'd'"),
    "missing target": (
        table(label=[None] + ["x", "y"] * 29 + ["x"]),
        "missing values in the target",
    ),
    "semicolons": (b"a;b;label\n1;2;3\n", "separate columns by commas"),
    "an index": (b",a,b,label\n0,1,2,3\n", "column 1 of bad.csv has no name"),
    "a name twice": (b"a,b,a,label\n0,1,2,3\n", "repeated column names in bad.csv: 'a'"),
    "huge": (table(d=[1e300] + [1.0] * 59), "values beyond ±1e+30 in 'd'"),
    "one class": (table(label="x"), "one class only ('x')"),
    "rare class": (
        table(label=["x", "y", "z"] + ["y", "z"] * 28 + ["x"]),
        "too few rows of class 'x'",
    ),
    "constant target": (table(label=2.5), "is 2.5 in every row"),
    "huge target": (table(label=1e200 * NUMBERS), "values beyond ±1e+30 in the target 'label'"),
    "tiny target": (table(label=1e-300 * NUMBERS), "varies by 5.9e-299 only; rescale it so"),
    "one row decides": (
        table(label=1.5 * (NUMBERS == 26)),
        "is 0 in every training row of split ",
    ),
    "few rows": (table(rows=19), "has 19 rows; give at least 20"),
    "one column": (table()[["a", "label"]], "1 column(s) besides the target"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables_are_refused_in_one_line(here, name):
    content, words = BAD_TABLES[name]
    if isinstance(content, bytes):
        (here / "bad.csv").write_bytes(content)
    else:
        content.to_csv("bad.csv", index=False)
    assert words in refused("bad.csv", "--target", "label", "-k", 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.csv", "--target", "label", "-k", 2], "no such file: none.csv"),
        ([".", "--target", "label", "-k", 2], "is a directory"),
        (["data.csv", "-k", 2], "--target NAME is missing"),
        (["data.csv", "--target", "label"], "-k is missing; choose how many columns to keep, 1..5"),
        (["data.csv", "--target", "lable", "-k", 2], "did you mean 'label'?"),
        (["data.csv", "--target", "zzz", "-k", 2], "its columns are 'a', 'b'"),
        (["data.csv", "--target", "label", "-k", 0], "k must be in 1..5"),
        (["data.csv", "--target", "label", "-k", 6], "k must be in 1..5"),
        (["-k", 64], "k must be in 1..63"),
        (["--target", "label"], "--target needs a table"),
        (["--task", "regression"], "digits are a classification task"),
        (["data.csv", "--target", "label", "-k", 2, "--task", "sorting"], "--task must be one of"),
        (["data.csv", "--target", "label", "-k", 2, "--task", "regression"], "is not numeric"),
        (
            ["data.csv", "--target", "a", "-k", 2, "--task", "classification"],
            "too few rows of class",
        ),
        (
            ["data.csv", "--target", "label", "-k", 2, "--drop", "a,b"],
            "no column 'a,b' in data.csv; one name an option: --drop a --drop b",
        ),
        (["data.csv", "--target", "a,b", "-k", 2], "its columns are 'a', 'b'"),
        (["--missing", "mean"], "--missing must be one of refuse, drop, median; got 'mean'"),
        (["--splits", 0], "--splits must be at least 1; got 0"),
        (["--steps", 0], "--steps must be at least 1; got 0"),
        (["--seed", -1], "--seed must be at least 0; got -1"),
        (["--out", "data.csv"], "--out data.csv is a file"),
        (["--out", "data.csv/deep/er"], "cannot be written"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(here, arguments, words):
    assert words in refused(*arguments)


def test_out_that_may_not_be_written_is_refused_before_any_work(here, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "no permission" in refused("--out", "sealed/here")


def test_usage_errors_end_with_status_2():
    for arguments in (["select", "-k", "two"], ["select", "--unknown"], ["frobnicate"]):
        assert CliRunner().invoke(app.app, arguments).exit_code == 2


def test_classes_with_too_few_rows_of_a_number_are_named(here):
    table(label=np.arange(60) % 18).to_csv("bad.csv", index=False)
    line = refused("bad.csv", "--target", "label", "-k", 2)
    assert "'6', '7'" in line
    assert "and 4 more" in line


@pytest.mark.parametrize("failing", range(2))
def test_a_failed_write_leaves_neither_file(here, monkeypatch, failing):
    calls = []
    real = os.fsync

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == failing + 1:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(files.OutputError, match="No space left on device; nothing was written"):
        files.write(here / "out", dict.fromkeys(FILES, b"new"), force=False)
    assert not (here / "out").exists()


def test_a_failed_write_keeps_the_old_files(here, monkeypatch):
    out = here / "out"
    files.write(out, dict.fromkeys(FILES, b"old"), force=False)
    with pytest.raises(InputError, match="add --force to overwrite"):
        files.write(out, dict.fromkeys(FILES, b"new"), force=False)

    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write(out, dict.fromkeys(FILES, b"new"), force=True)
    assert sorted(os.listdir(out)) == FILES
    assert {(out / name).read_bytes() for name in FILES} == {b"old"}


@pytest.fixture
def sigint():
    """Python's own handling of Ctrl-C, which a parent process may have switched off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.SIGINT
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_at_once_with_status_130_and_no_files(here, monkeypatch, sigint):
    real = TwoBars.trained

    def interrupt(self, step, *now):
        real(self, step, *now)
        if step == 2:
            signal.raise_signal(sigint)

    monkeypatch.setattr(TwoBars, "trained", interrupt)
    result = run("data.csv", "--target", "label", "-k", 2)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "kofn: interrupted; nothing was written"
    assert sorted(os.listdir()) == ["data.csv"]


def test_names_are_not_taken_for_markup_or_mathematics(here):
    names = {name: f"[red]{name}_$x[/]" for name in "abcdef"}
    table().rename(columns=names).to_csv("data.csv", index=False)
    result = run("data.csv", "--target", "label", "-k", 2, *QUICK)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("[red]") == result.stdout.count("_$x[/]") == 2


def test_without_the_extra_the_import_says_what_to_install(monkeypatch):
    real = importlib.util.find_spec

    def find(name, *rest):
        return None if name == "rich" else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(ImportError, match=r'needs rich; .* pip install "kofn\[cli\]"') as error:
        importlib.reload(app)
    assert "\n" not in str(error.value)


def test_version():
    result = CliRunner().invoke(app.app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("kofn ")


def with_holes(share):
    """A table with missing values in column c, and in one row the target."""
    frame = table()
    frame.loc[np.random.default_rng(1).random(60) < share, "c"] = np.nan
    frame.loc[7, "label"] = None
    return frame


def test_rows_with_missing_values_are_dropped(here):
    frame = with_holes(0.2)
    frame.to_csv("holes.csv", index=False)
    frame.dropna().to_csv("whole.csv", index=False)
    found = []
    for name in ("holes", "whole"):
        arguments = (f"{name}.csv", "--target", "label", "-k", 2, "--missing", "drop")
        result = run(*arguments, "--out", name, *QUICK)
        assert result.exit_code == 0, result.output
        words = " ".join(result.stdout.split())
        assert ("rows with missing values dropped" in words) == (name == "holes")
        found.append(json.loads((here / name / "selection.json").read_text()))
    assert found[0]["rows"] == len(frame.dropna())
    assert found[0]["rows_dropped"] == 60 - len(frame.dropna())
    assert found[0]["methods"] == found[1]["methods"]


def test_missing_values_are_filled_by_the_median(here):
    with_holes(0.2).to_csv("holes.csv", index=False)
    result = run("holes.csv", "--target", "label", "-k", 2, "--missing", "median", *QUICK)
    assert result.exit_code == 0, result.output
    found = json.loads((here / "kofn-select" / "selection.json").read_text())
    assert (found["rows"], found["rows_dropped"], found["missing"]) == (59, 1, "median")


def test_a_class_may_have_the_name_of_a_missing_value(here):
    """Of a target that is no number, only an empty field is missing; "NA" is a name, also there."""
    for word in ("NA", "null", "nan", "None"):
        frame = table(label=[word, "x", "y"] * 20).rename(columns={"b": "NA"})
        frame.to_csv("data.csv", index=False)
        for missing in tables.MISSING:
            found = tables.read_table(here / "data.csv", "label", "auto", missing)
            assert (set(found.classes), found.dropped) == ({word, "x", "y"}, 0)
            assert "NA" in found.columns
    table(label=["", "x", "y"] * 20).to_csv("data.csv", index=False)
    assert "missing values in the target" in refused("data.csv", "--target", "label", "-k", 2)
    assert tables.read_table(here / "data.csv", "label", "auto", "drop").classes == ["x", "y"]
    table(label=["NA", 1.5, 2.5] * 20).to_csv("data.csv", index=False)  # numbers
    assert tables.read_table(here / "data.csv", "label", "auto", "drop").dropped == 20


@pytest.mark.parametrize("header", ["NFC", "NFD"])
@pytest.mark.parametrize("asked", ["NFC", "NFD"])
def test_a_name_is_found_however_its_accents_are_written(here, header, asked):
    written, wanted = (unicodedata.normalize(form, "prix_été") for form in (header, asked))
    table().rename(columns={"label": written}).to_csv("data.csv", index=False)
    assert tables.read_table(here / "data.csv", wanted, "auto").target == "prix_été"


def test_what_missing_values_leave_must_suffice(here):
    with_holes(0.9).to_csv("holes.csv", index=False)
    arguments = ("holes.csv", "--target", "label", "-k", 2, "--missing")
    assert "without missing values; give at least 20" in refused(*arguments, "drop")
    table(c=np.nan).to_csv("holes.csv", index=False)
    for way in ("drop", "median"):
        assert "no values at all in 'c'; drop these columns" in refused(*arguments, way)


def test_medians_are_those_of_the_training_rows(monkeypatch):
    seen = []

    def record(X, y, k, seed):
        seen.append(X)
        return np.arange(k)

    monkeypatch.setattr(compare, "_draw", record)
    X = np.random.default_rng(0).normal(size=(40, 4))
    X[:, 2] = np.arange(40.0) ** 3
    X[::3, 2] = np.nan
    data = tables.Table("t", X, X[:, 0], list("abcd"), "y", "regression", [])
    selector = SoftTopKSelector(2, steps=2)
    compare.compare(data, 2, selector=selector, splits=2, seed=0, tell=lambda *now: None)
    for (train, _), fitted in zip(compare._parts(data, 2, 0), seen, strict=True):
        holes = np.isnan(X[train, 2])
        known = X[train, 2][~holes]
        values = np.where(holes, np.median(known), X[train, 2])
        np.testing.assert_allclose(fitted[:, 2], (values - values.mean()) / values.std())


def test_a_column_without_values_in_a_training_part_is_filled_by_zero():
    X = np.array([[np.nan, 1.0], [2.0, np.nan], [np.nan, 4.0]])
    np.testing.assert_array_equal(tables.filled(X, X[[0, 2]]), [[0, 1], [2, 2.5], [0, 4]])


def test_a_wide_table_has_no_scores_for_columns_that_were_not_trained_on(here):
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.normal(size=(40, 130)).round(3), columns=[f"c{i}" for i in range(130)])
    wide.assign(label=wide["c1"] + wide["c4"]).to_csv("wide.csv", index=False)
    result = run("wide.csv", "--target", "label", "-k", 2, *QUICK)
    assert result.exit_code == 0, result.output
    found = json.loads((here / "kofn-select" / "selection.json").read_text())
    assert sum(each["score"] is None for each in found["all_columns"]) == 66


@pytest.mark.parametrize("metric", ["accuracy", "balanced"])
def test_where_one_class_is_frequent_the_majority_is_said_and_another_metric_tells_more(
    here, metric
):
    frame = table(120)
    frame["label"] = np.where(frame["b"] > np.quantile(frame["b"], 0.9), "yes", "no")
    frame.to_csv("data.csv", index=False)
    how = ["data.csv", "--target", "label", "-k", 2, "--metric", metric, *QUICK]
    result = run(*how)
    assert result.exit_code == 0, result.output
    found = json.loads((here / "kofn-select/selection.json").read_text())
    assert found["majority"] == pytest.approx(0.9 if metric == "accuracy" else 0.5)
    assert found["score"] == compare.NAMES[metric]
    text = " ".join(result.stdout.split())
    assert f"Always the most frequent class: {found['score']} {found['majority']:.3f}." in text
    warned = "--metric balanced compares by the classes" in text
    assert warned == (metric == "accuracy")
    (drawn,) = (each for each in found["methods"] if each["method"] == "random")
    if metric == "balanced":  # columns that tell nothing are no better than the majority
        assert drawn["held_out"]["RBF SVM"]["mean"] < 0.8


def test_even_classes_and_regression_are_not_warned_of(here):
    for task in ("classification", "regression"):
        table(task=task).to_csv("data.csv", index=False)
        result = run("data.csv", "--target", "label", "-k", 2, *QUICK, "--json")
        found = json.loads(result.stdout)
        assert (found["majority"] is None) == (task == "regression")
        shown = run("data.csv", "--target", "label", "-k", 2, *QUICK, "--force").stdout
        assert "Warning" not in shown
        assert ("most frequent" in shown) == (task == "classification")


def test_columns_are_left_out_by_name_whatever_is_in_them(here):
    ids = [f"x{i}" for i in range(60)]
    table(id=ids, name="same").to_csv("data.csv", index=False)
    how = ["data.csv", "--target", "label", "-k", 2, *QUICK]
    assert "id" in refused(*how)
    result = run(*how, "--drop", "id", "--drop", "name", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [each["column"] for each in found["all_columns"]] == list("abcdef")
    assert "no column 'ids' in data.csv; did you mean 'id'?" in refused(*how, "--drop", "ids")
    line = refused(*how, "--drop", "label")
    assert "--drop and --target both name 'label'" in line
    assert "--drop needs a table" in refused("--drop", "id")


def test_columns_of_words_are_chosen_as_a_whole(here):
    plans = np.array(["free", "pro", "team"])[np.random.default_rng(1).integers(0, 3, 60)]
    label = np.where(plans == "pro", "stays", "leaves")
    frame = table(plan=plans, label=label, open=plans == "x")[["a", "plan", "open", "b", "label"]]
    frame.loc[3, "plan"] = None
    frame.to_csv("data.csv", index=False)
    how = ["data.csv", "--target", "label", "--splits", 1, "--steps", 60, "--json"]
    assert "missing values in 'plan'" in refused(*how, "-k", 1)
    result = run(*how, "-k", 1, "--missing", "median")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [each["column"] for each in found["all_columns"]] == ["a", "plan", "open", "b"]
    assert [each["column"] for each in found["chosen"]] == ["plan"]
    assert found["k"] == 1
    assert found["selector"]["groups"] == [0, 1, 1, 1, 2, 3]
    assert found["selector"]["costs"] is None
    scores = {each["method"]: each["held_out"]["RBF SVM"]["mean"] for each in found["methods"]}
    del scores["random"]
    assert min(scores.values()) > 0.9, scores  # every method takes the whole column
    frame.loc[3, "plan"] = "free"
    frame.to_csv("data.csv", index=False)
    encoded = tables.read_table(here / "data.csv", "label", "auto")
    np.testing.assert_array_equal(encoded.X[:, 1:4].sum(1), 1)


def test_a_method_that_ranks_single_columns_takes_the_groups_of_the_best():
    members = np.array([0, 1, 1, 2, 2])
    marks = np.array([0.2, 0.1, 0.5, 0.3, 0.3])
    assert compare._best(marks, members).tolist() == [0.2, 0.5, 0.3]
    assert compare._largest(compare._best(marks, members), 2).tolist() == [1, 2]


def test_columns_like_ids_are_named(here):
    for words, said in (
        (
            {"who": [f"x{i}" for i in range(60)]},
            "'who' has 60 different words in 60 rows, as an id",
        ),
        ({"who": ["?", *range(59)]}, "in 60 rows, '?' is not a number; at most 30 are encoded"),
    ):
        table(**words).to_csv("data.csv", index=False)
        assert said in refused("data.csv", "--target", "label", "-k", 2)
    table(nr=np.arange(60)[::-1], half=np.arange(60) // 2).to_csv("data.csv", index=False)
    result = run("data.csv", "--target", "label", "-k", 2, *QUICK)
    assert "Warning: 'nr' has another whole number in each row" in " ".join(result.stdout.split())


def test_only_bars_that_can_be_seen_are_drawn():
    X, y = np.random.default_rng(0).normal(size=(60, 150)), np.tile([0, 1], 30)
    data = tables.Table("t", X, y, [f"x{i}" for i in range(150)], "y", "classification", ["a", "b"])
    selector = SoftTopKSelector(3, steps=40, hidden=4, random_state=0).fit(X, y)
    outcome = compare.Outcome(data, selector, None)
    drawn = report._barred(outcome, 40)
    assert drawn[:3] == selector.order_[:3].tolist()
    assert 3 <= len(drawn) == max(3, (selector.weights_ >= 0.005).sum()) < 40
    assert len(report._barred(outcome, 2)) == 2


def test_a_pipe_has_whole_lines_and_lines_of_progress(here, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(terminal._Lines, "every", 0.0)
    names = {name: f"a name of some length {name}" for name in "abcdef"}
    table().rename(columns=names).to_csv("data.csv", index=False)
    result = run("data.csv", "--target", "label", "-k", 5, *QUICK)
    assert "Held-out accuracy, one split, 25% held out (45 rows for training" in result.stdout
    (chosen,) = (each for each in result.stdout.splitlines() if each.startswith("Chosen"))
    assert chosen.count("a name of some length") == 5
    lines = result.stderr.splitlines()
    assert len(lines) == compare.METHODS + 1
    assert re.fullmatch(r"kofn: 3/10 1/1 RFE, \d+ s", lines[3])


def test_an_unknown_metric_is_refused(here):
    line = refused("data.csv", "--target", "label", "-k", 2, "--metric", "auc")
    assert "--metric must be one of accuracy, balanced; got 'auc'" in line
