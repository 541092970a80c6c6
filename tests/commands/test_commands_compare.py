"""`kofn compare` and `kofn apply`: what they answer, what they refuse, what they leave behind."""

import io
import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from kofn import entmax, hard_topk, metrics, soft_topk, softmax
from kofn.commands import app
from kofn.commands.apply import by_blocks
from kofn.commands.apply import command as commands
from kofn.commands.compare import compare as measures
from kofn.commands.compare import table
from kofn.commands.compare.compare import compare
from kofn.commands.compare.maps import MAPS, Map, serving
from support import full_but

FILES = ["compare.json", "compare.png"]
X = np.random.default_rng(0).normal(size=(3, 6))


def run(*arguments, send=None):
    return CliRunner().invoke(app.app, [str(argument) for argument in arguments], input=send)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with scores in it: x.csv, x.npy."""
    monkeypatch.chdir(tmp_path)
    np.savetxt("x.csv", X, delimiter=",", header="a,b,c,d,e,f", comments="", fmt="%.17g")
    np.save("x.npy", X.astype(np.float32))
    return tmp_path


def test_help_names_every_map():
    words = " ".join(run("apply", "--help").stdout.split())
    assert [each.name for each in MAPS if each.name not in words] == []


def refused(*arguments, send=None):
    """The one line on standard error of a run that ends with status 2 and writes nothing."""
    before = sorted(os.listdir())
    result = run(*arguments, send=send)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert sorted(os.listdir()) == before
    (line,) = result.stderr.splitlines()
    assert line.startswith("kofn: ")
    return line


# --- apply ---


def numbers(text, skip=0):
    return np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2, skiprows=skip)


def test_apply_answers_in_the_form_it_was_asked_in(here):
    result = run("apply", "x.csv", "-k", 2, "--temperature", 0.5)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("a,b,c,d,e,f\n")
    # Every digit is there.
    np.testing.assert_array_equal(numbers(result.stdout, 1), soft_topk(X, 2, temperature=0.5))
    result = run("apply", "x.npy", "-k", 2)
    weights = np.load(io.BytesIO(result.stdout_bytes))
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights, soft_topk(X.astype(np.float32), 2))


@pytest.mark.parametrize("text", ["2 1 0.5", "2\t1\t0.5", "2;1;0.5\n", "\ufeff2, 1, 0.5\r\n\r\n"])
def test_apply_takes_standard_input_however_it_is_separated(text):
    result = run("apply", "-k", 1, send=text)
    np.testing.assert_array_equal(numbers(result.stdout), [soft_topk(np.array([2, 1, 0.5]), 1)])
    assert run("apply", "-", "-k", 1, send=text).stdout == result.stdout


def test_one_score_a_line_is_one_row():
    result = run("apply", "--map", "softmax", send="a name of three words\n2\n1\n0.5\n")
    head, *rows = result.stdout.splitlines()
    assert head == "a name of three words"
    np.testing.assert_allclose(np.array(rows, float), softmax(np.array([2, 1, 0.5])), rtol=1e-15)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--map", "sparsemax"], soft_topk(X, 1, link="linear")),
        (["-k", 1, "--map", "entmax", "--alpha", 1.2], entmax(X, 1.2)),
        (["--hard", "-k", 2.5], hard_topk(X, 2.5)),
        (["--map", "normal", "-k", 6], np.ones((3, 6))),
    ],
)
def test_apply_has_every_map(here, options, expected):
    result = run("apply", "x.csv", *options)
    np.testing.assert_allclose(numbers(result.stdout, 1), expected, atol=1e-15)


@pytest.mark.parametrize(("option", "value"), [("support", 2.5), ("gap", 0.5)])
@pytest.mark.parametrize("name", ["laplace", "KSubset"])
def test_apply_finds_a_temperature(here, option, value, name):
    result = run("apply", "x.csv", "-k", 2, "--map", name, f"--{option}", value)
    weights = numbers(result.stdout, 1)
    got = {"support": metrics.effective_support(weights), "gap": metrics.hard_gap(weights, 2)}
    assert got[option].mean() == pytest.approx(value, abs=1e-6)


def test_apply_writes_a_file_of_the_kind_its_name_says(here):
    assert run("apply", "x.csv", "-k", 1, "--out", "w.npy").stdout == "Wrote w.npy\n"
    np.testing.assert_array_equal(np.load("w.npy"), soft_topk(X, 1))
    run("apply", "x.npy", "-k", 1, "--out", "w.csv")
    weights = np.loadtxt("w.csv", delimiter=",", dtype=np.float32)
    np.testing.assert_array_equal(weights, soft_topk(X.astype(np.float32), 1))
    assert "w.csv exists; add --force to overwrite it" in refused(
        "apply", "x.csv", "-k", 1, "--out", "w.csv"
    )
    assert run("apply", "x.csv", "-k", 1, "--out", "w.csv", "--force").exit_code == 0
    assert (here / "w.csv").read_text().startswith("a,b")
    assert sorted(os.listdir()) == ["w.csv", "w.npy", "x.csv", "x.npy"]


# --- compare ---


def test_compare_shows_every_map_and_leaves_a_picture_and_the_numbers(here):
    result = run("compare", "x.csv", "-k", 2, "--support", 3)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir("kofn-compare")) == FILES
    found = json.loads((here / "kofn-compare" / "compare.json").read_text())
    assert [each["map"] for each in found["maps"]] == [each.name for each in serving(2)]
    for each in found["maps"]:
        assert each["map"] in result.stdout
        assert each["means"]["effective support"] == pytest.approx(3, abs=1e-6)
        assert each["means"]["sum"] == pytest.approx(2)
        spread = [point["effective support"] for point in each["over_temperature"]]
        assert np.all(np.diff(spread) > -1e-9)
    assert "2 of 6 scores, row 1 of 3" in result.stdout
    assert (here / "kofn-compare" / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert "compare.json exists; add --force" in refused("compare", "x.csv")


def test_with_k_1_the_maps_have_the_names_people_know(here):
    result = run("compare", "x.npy", "--out", "here")
    assert {"softmax", "sparsemax", "logistic"} <= set(result.stdout.split())
    assert "KSubset" not in result.stdout


FAR = "3e305 -1e305 2 1\n1e-300 0 2e-300 5e-300"


@pytest.mark.parametrize(
    "text", full_but((FAR,), ("1 1 1 1", "3 -inf 2 1\n1 0 inf 2", FAR, "3e305 -1e305 2e304 1e303"))
)
def test_infinite_equal_and_far_scores_can_be_compared(here, monkeypatch, text):
    monkeypatch.setattr(measures, "CURVE_POINTS", 5)
    result = run("compare", "-k", 2, send=text)
    assert result.exit_code == 0, result.output
    found = json.loads((here / "kofn-compare" / "compare.json").read_text())
    assert all(each["means"]["sum"] == pytest.approx(2) for each in found["maps"])


def test_measures_are_those_of_the_dense_jacobian():
    comparison = compare(X, 2, "temperature", 0.5)
    for each in comparison.maps:
        dense = [
            torch.func.jacrev(lambda x, m=each.map: m.weights(x, 2, 0.5))(torch.tensor(row))
            for row in X
        ]
        expected = np.mean([np.linalg.norm(matrix.numpy(), 2) for matrix in dense])
        assert each.means["slope"] == pytest.approx(expected, rel=1e-3)


def test_a_map_is_added_by_one_line(here, monkeypatch):
    """Its temperature and its slope are found without knowing anything about it."""
    root = Map("root", lambda x, k, t: softmax(x, temperature=t**2), most=1)
    monkeypatch.setattr("kofn.commands.compare.maps.MAPS", (*MAPS, root))
    result = run("compare", "x.csv", "--gap", 1.0)
    assert "root" in result.stdout
    found = json.loads((here / "kofn-compare" / "compare.json").read_text())
    found = {each["map"]: each for each in found["maps"]}
    known, same = found["softmax"], found["root"]
    assert same["temperature"] == pytest.approx(known["temperature"] ** 0.5)
    assert same["means"]["slope"] == pytest.approx(known["means"]["slope"], rel=1e-3)


@pytest.mark.parametrize("each", [each for each in MAPS if each.product], ids=lambda m: m.name)
def test_slopes_by_products_and_by_differences_are_the_same(each):
    k, rows = max(each.least, 1), np.vstack([X, [3, -np.inf, 2, 1, 0, -1]])
    plain = replace(each, product=None, transposed=None)
    expected = plain.slope(rows, k, 0.7)
    np.testing.assert_allclose(each.slope(rows, k, 0.7), expected, rtol=1e-3)


def test_names_are_not_taken_for_markup_or_mathematics(here):
    result = run("compare", "-k", 1, send="[red]a_$x[/],b\n2,1\n")
    assert result.exit_code == 0, result.output
    assert "[red]a_$x[/]" in result.stdout


# --- what is refused ---


def saved(values, **more):
    content = io.BytesIO()
    np.save(content, values, **more)
    return content.getvalue()


BAD = {
    "empty": (b"", "is empty"),
    "blank": (b"\n \n", "is empty"),
    "header only": (b"a,b\n", "has a header but no scores"),
    "ragged": (b"1,2\n3\n", "has rows of different lengths: 1 in line 2, 2 in line 1"),
    "ragged header": (
        b"a,b\n\n1,2,3\n",
        "has rows of different lengths: 3 in line 3, 2 in the header",
    ),
    "an index": (b",a,b\n0,1,2\n", "column 1 of bad has no name (a saved index?)"),
    "words": (b"1,2\n3,x\n", "line 2 of bad, column 2: 'x' is not a number"),
    "underscores": (b"1,2\n3,1_0\n", "'1_0' is not a number"),
    "missing": (b"1,,2\n", "line 1 of bad, column 2: a score is missing"),
    "nan": (b"1,2\n3,nan\n", "has a NaN in row 2, column 2"),
    "not text": (b"\xff\xfe\x00", "neither .npy nor UTF-8 text"),
    "archive": (b"PK\x03\x04....", "save one array with numpy.save"),
    "objects": (saved(np.array([{}], object), allow_pickle=True), "entries are Python objects"),
    "complex": (saved(np.ones(2) * 1j), "has dtype complex128; scores must be real numbers"),
    "no scores": (saved(np.zeros((0, 3))), "has shape (0, 3); give at least one score"),
    "a number": (saved(np.array(3.0)), "has shape (); give at least one score"),
    "cut off": (saved(X)[:-8], "cannot be read as .npy"),
    "no end": (
        saved(np.ones(10)).replace(b"(10,)", b"(9" + b"9" * 12 + b",)"),
        "does not fit in memory",
    ),
    "nan inside": (saved(np.full((1, 1, 2), np.nan)), "has a NaN in axis 0, entry 1, axis 1"),
}


@pytest.mark.parametrize("command", ["apply", "compare"])
@pytest.mark.parametrize("name", BAD)
def test_bad_scores_are_refused_in_one_line(here, command, name):
    content, words = BAD[name]
    (here / "bad").write_bytes(content)
    assert words in refused(command, "bad", "-k", 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["apply", "none.csv", "-k", 1], "no such file: none.csv"),
        (["apply", ".", "-k", 1], ". is a directory"),
        (["apply", "x.csv", "-k", 7], "-k must be in [0, 6]"),
        (["apply", "x.csv", "-k", "nan"], "-k must be in [0, 6]"),
        (["compare", "x.csv", "-k", 6], "-k must be above 0 and below 6"),
        (["compare", "x.csv", "-k", 0], "-k must be above 0 and below 6"),
        (["apply", "x.csv", "-k", 1, "--map", "cubic"], "--map must be one of logistic, laplace"),
        (["apply", "x.csv", "--map", "softmax", "-k", 2], "--map softmax needs k = 1; got k = 2"),
        (["apply", "x.csv", "--map", "KSubset", "-k", 2.5], "needs an integer k of 2 or more"),
        (
            ["apply", "x.csv", "-k", 1, "--map", "normal", "--alpha", 2],
            "--alpha needs --map entmax",
        ),
        (
            ["apply", "x.csv", "-k", 1, "--map", "entmax", "--alpha", 0.5],
            "--alpha must be a finite number",
        ),
        (
            ["apply", "x.csv", "-k", 1, "--support", 2, "--gap", 1],
            "--support and --gap each set the temperature",
        ),
        (
            ["apply", "x.csv", "-k", 1, "--support", 7],
            "--support must be a number in [k, n] (here [1, 6])",
        ),
        (["compare", "x.csv", "--gap", 3], "--gap must be a number in [0, 1.66667]"),
        (["compare", "x.csv", "--temperature", 0], "--temperature must be a finite number > 0"),
        (["compare", "x.csv", "--support", "inf"], "--support must be a finite number > 0"),
        (
            ["apply", "x.csv", "-k", 1, "--out", "w.txt"],
            "--out must end in .csv or .npy; got w.txt",
        ),
        (["apply", "x.csv", "-k", 1, "--out", "."], "--out . is a directory"),
        (["apply", "x.csv", "-k", 1, "--out", "x.npy/w.csv"], "--out x.npy is a file"),
        (["compare", "x.csv", "--out", "x.npy"], "--out x.npy is a file"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(here, arguments, words):
    assert words in refused(*arguments)


BEYOND = 2**53 + np.array([[1, 0, 2, 3], [0, 2, 1, -5]])
"""Integers of which float64 does not have all."""


@pytest.mark.parametrize("form", ["csv", "int64", "uint64", "long rows"])
def test_integers_are_compared_exactly_or_refused(here, monkeypatch, form):
    """--hard asks for their order alone; soft weights would be those of rounded scores."""
    name = "x.csv" if form == "csv" else "big.npy"
    if form == "csv":
        np.savetxt(name, BEYOND, fmt="%d", delimiter=",")
    else:
        np.save(name, BEYOND.astype("uint64" if form == "uint64" else "int64"))
    if form == "long rows":
        monkeypatch.setattr(by_blocks, "LONG", 3)
    wanted = [[0, 0, 1, 1], [0, 1, 1, 0]]
    for out in ("w.npy", "w.csv"):
        run("apply", name, "-k", 2, "--hard", "--out", out, "--force")
    assert np.array_equal(np.load("w.npy"), wanted)
    assert np.array_equal(np.loadtxt("w.csv", delimiter=","), wanted)
    for more in (["--out", "w.npy"], ["--out", "w.csv"], ["--threshold-only"]):
        line = refused("apply", name, "-k", 2, *more, *(["--force"] if len(more) > 1 else []))
        assert "has the integer 9007199254740993, which float64 rounds" in line
    assert "which float64 rounds" in refused("compare", name, "-k", 2)
    np.save("big.npy", BEYOND // 2**20 * 2**20)  # float64 has these
    assert run("apply", "big.npy", "-k", 2, "--out", "w.npy", "--force").exit_code == 0


def test_a_long_row_of_integers_that_are_far_apart_is_refused(here, monkeypatch):
    monkeypatch.setattr(by_blocks, "LONG", 3)
    np.save("x.npy", np.array([-(2**62), 5, 2**62, 3]))
    line = refused("apply", "x.npy", "-k", 2, "--hard", "--out", "w.npy")
    assert "integers from -4611686018427387904 to 4611686018427387904 in one row" in line


def test_a_cube_is_no_table(here):
    np.save("cube.npy", np.ones((2, 2, 3)))
    assert "of shape (2, 2, 3) do not fit in a table" in refused(
        "apply", "cube.npy", "-k", 1, "--out", "w.csv"
    )


def test_terminals_are_neither_read_from_nor_sent_bytes(here, monkeypatch):
    monkeypatch.setattr(table.sys.stdin.__class__, "isatty", lambda self: True, raising=False)

    class Terminal:
        def isatty(self):
            return True

    monkeypatch.setattr(table.sys, "stdin", Terminal())
    with pytest.raises(table.InputError, match="no scores: give a file"):
        table.read("-")
    monkeypatch.setattr(commands.sys, "stdout", Terminal())
    with pytest.raises(table.InputError, match="cannot be shown on a terminal"):
        commands.apply("x.npy", 1)


def test_ctrl_c_ends_with_status_130_and_no_files(here, monkeypatch):
    def interrupt(*arguments):
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr("kofn.commands.compare.report.as_png", interrupt)
        result = run("compare", "x.csv")
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "kofn: interrupted; nothing was written"
    assert sorted(os.listdir()) == ["x.csv", "x.npy"]
