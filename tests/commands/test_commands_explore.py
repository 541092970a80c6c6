"""`kofn explore`: its solver answers what kofn does, and its code prints what it shows."""

import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import webbrowser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import explorer_golden
from kofn import links
from kofn.commands import app
from kofn.commands.explore import page
from kofn.links.table import TABLE

NODE = shutil.which("node")
if NODE is None and "CI" in os.environ:
    raise RuntimeError("continuous integration has to run the explorer's scripts; install node")
needs_node = pytest.mark.skipif(NODE is None, reason="the explorer's scripts need node")

GOLDEN = explorer_golden.read()


def run_script(code, given, names=page.SOLVER):
    """Run code after the explorer's scripts; return the JSON that it prints for `given`."""
    text = f"{page.script(names)}\nconst given = {json.dumps(given)};\n{HELPERS}\n{code}"
    command = [NODE, "--input-type=module"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# JSON has no infinities: words stand for them, both ways.
HELPERS = """
const WORDS = { inf: Infinity, "-inf": -Infinity, nan: NaN };
const heard = (v) => (Array.isArray(v) ? v.map(heard) : v in WORDS ? WORDS[v] : v);
const said = (v) => JSON.stringify(v, (_, x) =>
  typeof x !== "number" || Number.isFinite(x) ? x : x > 0 ? "inf" : x < 0 ? "-inf" : "nan");
"""


# Far out in a tail, e^(−z²/2) multiplies the rounding of z by z, and a share of slopes shows it.
ERRORS = dict.fromkeys(("p", "theta", "sum", "hard", "marginals", "row", "dT"), 1e-12) | {
    "dk": 1e-10
}


def assert_agree(answers):
    for case, answer in zip(GOLDEN, answers, strict=True):
        for name, error in ERRORS.items():
            pair = [np.array(each[name], dtype=float) for each in (answer, case["answer"])]
            assert np.allclose(*pair, error, error, equal_nan=True), (name, case, answer)


def test_the_golden_file_is_what_kofn_answers():
    now = explorer_golden.now()
    inputs = [{**case, "answer": None} for case in now]
    assert inputs == [{**case, "answer": None} for case in GOLDEN]
    assert_agree([case["answer"] for case in now])


@needs_node
def test_the_solver_of_the_explorer_answers_what_kofn_does():
    code = """
    const { answer } = modules.answer;
    console.log(said(given.map((each) => {
      const state = { ...each, scores: heard(each.scores) };
      const { gradient, ...rest } = answer(state);
      const { p, theta, sum, hard, marginals } = rest;
      const unique = each.answer.theta === null ? null : theta;
      return { p, theta: unique, sum, hard, marginals, ...gradient };
    })));
    """
    assert_agree(run_script(code, GOLDEN))


@needs_node
def test_the_links_of_the_explorer_are_those_of_its_golden_file():
    """Each function of each link, at places where neither side rounds to 0 or 1."""
    z = np.linspace(-5.93, 5.93, 25)
    every = [[name, 1.5] for name in explorer_golden.SHOWN]
    every += [["entmax", alpha] for alpha in (1.0, 1.03, 1.3, 3.0)]
    code = """
    const { LINK_NAMES, linkOf } = modules.links;
    const of = ([name, alpha]) => {
      const link = linkOf(name, alpha);
      const names = ["cdf", "sf", "pdf", "logPdf", "logCdf", "logSf", "omega"];
      return Object.fromEntries(names.map((name) => [
        name,
        link[name] && given.z.map((z) => {
          const y = z - link.edge;
          return name === "omega" ? link.omega(link.cdf(y), y) : link[name](y);
        }),
      ]));
    };
    console.log(said({ names: LINK_NAMES, functions: given.every.map(of) }));
    """
    found = run_script(code, {"z": z.tolist(), "every": every})
    assert sorted(found["names"]) == sorted({each["link"] for each in GOLDEN})
    for (name, alpha), functions in zip(every, found["functions"], strict=True):
        link = links.entmax(alpha) if name == "entmax" else TABLE[name]
        assert ("logSf" in functions) is bool(link.inner._infinite_tails), name
        with np.errstate(divide="ignore"):
            for function, values in functions.items():
                python = re.sub("([A-Z])", lambda found: "_" + found[1].lower(), function)
                wanted = getattr(link, python)(link.cdf(z) if function == "omega" else z)
                assert np.allclose(np.array(values, float), wanted, 1e-11, 1e-13), (name, function)


# --- the command ---


def run(*arguments):
    return CliRunner().invoke(app.app, ["explore", *map(str, arguments)])


def test_it_writes_one_page_that_asks_for_nothing_else(tmp_path):
    out = tmp_path / "new" / "explorer.html"
    result = run("--out", out)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.output
    text = out.read_text(encoding="utf-8")
    assert text == page.page()
    assert not {"/* style */", "/* script */"} & set(text.splitlines())  # all is filled in
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!data:|#)[^"'\s>)]""", text) == []
    assert re.findall(r"\b(?:https?://(?!www\.w3\.org/2000/svg)|fetch\(|import\()", text) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [("page.pdf", "must end in .html"), (".", "is a directory"), ("old.html", "add --force")],
)
def test_it_refuses(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.html").write_text("mine")
    result = run("--out", name)
    assert result.exit_code == 2
    assert words in result.stderr
    assert (tmp_path / "old.html").read_text() == "mine"
    assert run("--out", "old.html", "--force").exit_code == 0
    assert (tmp_path / "old.html").read_text(encoding="utf-8") == page.page()


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """What a browser is to open; temporary files go to tmp_path."""
    opened = []

    class Browser:
        def open(self, address):
            opened.append(address)
            return True

    monkeypatch.setattr(webbrowser, "get", Browser)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return opened


def test_it_opens_a_browser(opened):
    result = run()
    assert result.exit_code == 0, result.output
    path = Path(result.stdout.strip())
    assert opened == [path.as_uri()]
    assert path.read_text(encoding="utf-8") == page.page()


@pytest.mark.parametrize("terminal", [False, True])
def test_without_a_browser_it_says_so(opened, monkeypatch, terminal):
    def none():
        if terminal:
            return webbrowser.GenericBrowser("lynx")
        raise webbrowser.Error

    monkeypatch.setattr(webbrowser, "get", none)
    result = run()
    assert (result.exit_code, opened) == (0, [])
    assert result.stderr == "kofn: no browser was found; open this file in one\n"
    assert Path(result.stdout.strip()).is_file()


# --- the code that it shows ---

INF = float("inf")
STATES = {
    "plain": {},
    "fraction": {"k": 2.5, "T": 0.3, "link": "normal", "entry": 0},
    "mask": {"off": [0, 1, 0, 0, 0, 1, 0, 0], "link": "entmax", "alpha": 1.7, "T": 2},
    "gap": {"scores": [2, 1.5, -3, -4], "k": 2, "T": 0.05, "link": "laplace", "entry": 1},
    "plateau": {"scores": [2, 1.5, -3, -4], "k": 2, "link": "linear", "T": 0.5},
    "none": {"k": 0},
    "all": {"k": 8, "link": "exponential"},
    "infinite": {"scores": [INF, 2, 1, -INF, 0], "k": 2, "T": 1, "entry": 1},
    "shared": {"scores": [INF, 2, INF, INF], "off": [0, 0, 0, 1], "k": 1, "T": 1, "entry": 0},
    "masked": {"scores": [1, 2], "off": [1, 1], "k": 1, "entry": 0},
}


QUICK = ("fraction", "mask")  # JAX compiles for each


@pytest.fixture(scope="module")
def shown():
    """For each state, what the page shows, and the code for each framework."""
    code = """
    const { answer } = modules.answer;
    const { codeFor } = modules.matrix_code;
    const { START, changed } = modules.state;
    console.log(said(given.map((part) => {
      const change = part.scores ? { ...part, scores: heard(part.scores) } : part;
      const state = changed(START, change);
      const codes = ["torch", "jax", "numpy"].map((name) => [name, codeFor(name, state)]);
      return { ...answer(state), link: null, codes: Object.fromEntries(codes) };
    })));
    """
    names = (*page.SOLVER, *page.STATE, *page.CODE)
    answers = run_script(code, explorer_golden.spelled(list(STATES.values())), names)
    return dict(zip(STATES, answers, strict=True))


def values(names, name):
    value = names[name]
    return np.asarray(value.detach() if hasattr(value, "detach") else value, dtype=float)


@needs_node
@pytest.mark.parametrize(
    ("framework", "name"),
    [
        *itertools.product(("torch", "numpy"), STATES),
        *(("jax", name) for name in QUICK),
        *(
            pytest.param("jax", name, marks=pytest.mark.full)
            for name in STATES
            if name not in QUICK
        ),
    ],
)
def test_the_code_computes_what_the_page_shows(shown, name, framework):
    want, names = shown[name], {}
    exec(shown[name]["codes"][framework], names)
    pairs = {
        "weights": want["p"],
        "smoothed_sum": want["sum"],
        "hard": want["hard"],
        "by_scores": want["gradient"]["row"],
        "by_k": want["gradient"]["dk"],
        "by_temperature": want["gradient"]["dT"],
    }
    if name != "plateau":  # there θ is any number of an interval
        pairs["threshold"] = want["theta"]
    if want["marginals"] is not None:
        pairs["marginals"] = want["marginals"]
    else:
        assert "marginals" not in names
    for each, numbers_shown in pairs.items():
        expected = np.array(numbers_shown, dtype=float)
        np.testing.assert_allclose(values(names, each), expected, 1e-12, 1e-12, err_msg=each)


# --- what is written into fields and addresses ---

ENTRIES = {
    "1, 2": [1, 2],
    "[3.5; -1e-2]\n(\u22121)\t.5": [3.5, -0.01, -1, 0.5],
    "inf -Infinity -0": ["inf", "-inf", 0],
    "": None,
    "1, two": None,
    "constructor": None,
    "2\uff0c1\u30010.5\uff1b-1": [2.0, 1.0, 0.5, -1.0],
    "nan": None,
    "2000000": None,
    " ".join("1" * 65): None,
}


@needs_node
def test_texts_and_addresses_are_read_as_they_were_written():
    code = """
    const { START, changed, fromHash, parseScores, toHash } = modules.state;
    const back = given.states.map((part) => {
      const change = part.scores ? { ...part, scores: heard(part.scores) } : part;
      const state = changed(START, change);
      const { state: read, wrong } = fromHash(toHash(state));
      // Without the link entmax, its alpha is not written.
      return said({ ...read, alpha: 0 }) === said({ ...state, alpha: 0 }) && !wrong.length;
    });
    console.log(said({ back, read: given.texts.map((text) => parseScores(text).scores ?? null) }));
    """
    given = {"states": explorer_golden.spelled(list(STATES.values())), "texts": list(ENTRIES)}
    found = run_script(code, given, (*page.SOLVER, *page.STATE))
    assert found["back"] == [True] * len(STATES)
    assert found["read"] == list(ENTRIES.values())
