"""The matrix of `kofn explore`: it answers what kofn does, and its code computes what it shows."""

import numpy as np
import pytest

import explorer_golden_matrix
from explorer_golden import spelled
from kofn.commands.explore import page
from test_commands_explore import needs_node, run_script, values

GOLDEN = explorer_golden_matrix.read()
STATE = (*page.SOLVER, *page.STATE)


def assert_agree(answers, cases=GOLDEN):
    """Weights to 1e-11, as sums are met to 1e-12; prices to what that leaves of them."""
    for case, answer in zip(cases, answers, strict=True):
        want = case["answer"]
        assert (answer["p"] is None) == (want["p"] is None), case
        for name, error in {"p": 1e-11, "alpha": 1e-8, "beta": 1e-8, "hard": 1e-12}.items():
            if want[name] is not None:
                pair = [np.array(each[name], dtype=float) for each in (answer, want)]
                assert np.allclose(*pair, error, error, equal_nan=True), (name, case, answer)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.full)])
def test_the_golden_file_is_what_kofn_answers(step):
    """Every fourth case: each kind of matrix, with some of the links."""
    now, then = explorer_golden_matrix.now(step), GOLDEN[::step]
    inputs = [{**case, "answer": None} for case in now]
    assert inputs == [{**case, "answer": None} for case in then]
    assert_agree([case["answer"] for case in now], then)


@pytest.fixture(scope="module")
def answers():
    code = """
    const { assignment } = modules.assignment;
    console.log(said(given.map((each) => {
      const { p, alpha, beta, hard } = assignment(each);
      return { p, alpha, beta, hard };
    })));
    """
    return run_script(code, GOLDEN)


@needs_node
def test_the_solver_of_the_matrix_answers_what_kofn_does(answers):
    assert_agree(answers)


@needs_node
def test_sums_are_met(answers):
    for case, answer in zip(GOLDEN, answers, strict=True):
        if answer["p"] is None:
            continue
        matrix = case["matrix"]
        p, shape = np.array(answer["p"]), np.shape(matrix["scores"])
        live = ~np.reshape(matrix["off"], shape)
        rows = np.where(live.any(1), matrix["rows"], 0)
        columns = np.where(live.any(0), matrix["columns"], 0)
        np.testing.assert_allclose(p.sum(1), rows, atol=1e-12, err_msg=str(case))
        np.testing.assert_allclose(p.sum(0), columns, atol=1e-11, err_msg=str(case))
        assert (p[~live] == 0).all()


# --- the margins, as they are moved ---


@needs_node
def test_columns_share_what_rows_give():
    code = """
    const { withColumn, withRow, limits } = modules.margins;
    let matrix = modules.matrix_state.MATRIX;
    const seen = [];
    for (const [move, place, to] of given) {
      matrix = { withRow, withColumn }[move](matrix, place, to);
      seen.push([matrix.rows, matrix.columns, limits(matrix)]);
    }
    console.log(said(seen));
    """
    rng = np.random.default_rng(0)
    moves = [["withRow", 3, 9], ["withColumn", 0, 0], ["withColumn", 1, 99], ["withRow", 0, -1]]
    moves += [["withRow", i, 0] for i in range(6)] + [["withRow", 2, 4]]
    moves += [["withRow", i, 4] for i in range(6)]  # all cells taken
    for _ in range(300):
        kind, size = [("withRow", 6), ("withColumn", 4)][rng.integers(2)]
        moves.append([kind, int(rng.integers(size)), float(rng.uniform(-1, 7))])
    shown = run_script(code, moves, STATE)
    for (kind, place, to), (rows, columns, (low, high)) in zip(moves, shown, strict=True):
        for margin, most in ((rows, 4), (columns, 6)):
            assert min(margin) >= 0
            assert max(margin) <= most
            np.testing.assert_array_equal(np.round(margin, 2), margin)
        assert round(100 * sum(rows)) == round(100 * sum(columns))
        if kind == "withRow":
            assert rows[place] == pytest.approx(np.clip(to, 0, 4), abs=0.00501)
        else:
            assert columns[place] == pytest.approx(np.clip(to, low, high), abs=0.00501)
    # In proportion: from 2, 2, 1.5 and 1.5, as k of row 3 goes from 2 to 4.
    np.testing.assert_allclose(shown[0][1], np.array([2, 2, 1.5, 1.5]) * 9 / 7, atol=0.01)
    np.testing.assert_array_equal(shown[1][1][0], 0)


# --- addresses and texts ---

STATES = {
    "plain": {},
    "masked": {"off": [0, 9, 13], "T": 2, "link": "entmax", "alpha": 1.7},
    "small": {
        "matrix": {"scores": [[1, -2.5], [0.25, 3]], "rows": [0.5, 1.25], "columns": [1, 0.75]}
    },
    "settled": {"matrix": {"rows": [0, 4, 1, 1, 1, 1], "columns": [2, 2, 2, 2]}, "link": "normal"},
    "impossible": {
        "matrix": {"scores": [[1, 2], [3, 4]], "rows": [2, 0], "columns": [2, 0]},
        "link": "linear",
    },
}

MADE = """
    const { changed, START } = modules.state;
    const made = ({ off, matrix, ...part }) => {
      const cells = off ? { off: START.matrix.off.map((_, i) => off.includes(i)) } : {};
      const all = { ...START.matrix, ...matrix, ...cells };
      return changed(START, { ...part, view: "matrix", matrix: all });
    };
"""


@needs_node
def test_the_address_holds_the_matrix():
    code = f"""{MADE}
    const {{ fromHash, toHash }} = modules.state;
    console.log(said(given.map((part) => {{
      const state = made(part);
      const {{ state: read, wrong }} = fromHash(toHash(state));
      return said({{ ...read, alpha: 0 }}) === said({{ ...state, alpha: 0 }}) && !wrong.length;
    }})));
    """
    assert run_script(code, list(STATES.values()), STATE) == [True] * len(STATES)


ADDRESSES = {
    "#view=matrix": ([], [2, 2, 1.5, 1.5]),
    "#view=matrix&rows=1,1,1,1,1,1": ([], [1.71, 1.71, 1.29, 1.29]),
    "#view=matrix&s=1,2;3,4&rows=1,0.5": ([], [0.75, 0.75]),
    "#view=matrix&s=1,2;3": (["s=1,2;3"], [2, 2, 1.5, 1.5]),
    "#view=matrix&s=1,200": (["s=1,200"], [2, 2, 1.5, 1.5]),
    "#view=matrix&columns=1,1,1,1": (["columns=1,1,1,1"], [2, 2, 1.5, 1.5]),
    "#view=matrix&rows=1,2&cell=24": (["rows=1,2", "cell=24"], [2, 2, 1.5, 1.5]),
    "#view=matrix&columns=7,0,0,0": (["columns=7,0,0,0"], [2, 2, 1.5, 1.5]),
    "#view=tensor": (["view=tensor"], None),
}


@needs_node
def test_what_cannot_be_used_of_an_address_is_told():
    code = """
    const { fromHash } = modules.state;
    console.log(said(given.map((hash) => {
      const { state, wrong } = fromHash(hash);
      return [wrong, state && state.matrix.columns];
    })));
    """
    found = run_script(code, list(ADDRESSES), STATE)
    for (hash, (wrong, columns)), (told, read) in zip(ADDRESSES.items(), found, strict=True):
        assert told == wrong, hash
        assert read == columns, hash


TEXTS = {
    "1, 2\n3, 4": [[1, 2], [3, 4]],
    "[[1, -2.5],\n [3, 4]]": [[1, -2.5], [3, 4]],
    "1\t2\t3": [[1, 2, 3]],
    "1 2; 3 4;": [[1, 2], [3, 4]],
    "1，2；3、4": [[1, 2], [3, 4]],  # noqa: RUF001
    "": None,
    "1 2; 3": None,
    "1 x": None,
    "inf 1": None,
    "1 2 3 4 5 6 7": None,
    "1\n" * 9: None,
}


@needs_node
def test_pasted_rows_are_read():
    code = """
    const { parseMatrix } = modules.matrix_state;
    console.log(said(given.map((text) => {
      const { scores, error } = parseMatrix(text);
      return [scores ?? null, Boolean(error)];
    })));
    """
    found = run_script(code, list(TEXTS), STATE)
    assert found == [[scores, scores is None] for scores in TEXTS.values()]


# --- the code that it shows ---


@pytest.fixture(scope="module")
def shown():
    code = f"""{MADE}
    const {{ codeFor }} = modules.matrix_code;
    console.log(said(given.map((part) => {{
      const state = made(part);
      const codes = ["torch", "jax", "numpy"].map((name) => [name, codeFor(name, state)]);
      const {{ p, alpha, beta, hard }} = modules.assignment.assignment(state);
      return {{ p, alpha, beta, hard, codes: Object.fromEntries(codes) }};
    }})));
    """
    answers = run_script(code, spelled(list(STATES.values())), (*STATE, *page.CODE))
    return dict(zip(STATES, answers, strict=True))


@needs_node
@pytest.mark.parametrize(
    ("framework", "name"),
    [
        *((framework, name) for framework in ("torch", "numpy") for name in STATES),
        ("jax", "masked"),
        *(pytest.param("jax", name, marks=pytest.mark.full) for name in STATES if name != "masked"),
    ],
)
def test_the_code_computes_what_the_matrix_shows(shown, name, framework):
    want, names = shown[name], {}
    exec(want["codes"][framework], names)
    if name == "impossible":
        assert want["p"] is None
        assert np.isnan(values(names, "weights")).all()
        return
    for each, key in {"weights": "p", "alpha": "alpha", "beta": "beta", "hard": "hard"}.items():
        expected = np.array(want[key], dtype=float)
        np.testing.assert_allclose(values(names, each), expected, 1e-9, 1e-10, err_msg=each)
