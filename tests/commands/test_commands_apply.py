"""`kofn apply` from .npy file to .npy file: by blocks, in little memory, and resumable."""

import json
import os
import tracemalloc

import numpy as np
import pytest
from typer.testing import CliRunner

from kofn import hard_topk, soft_topk, soft_topk_threshold, softmax, streaming
from kofn.commands import app, files
from kofn.commands.apply import by_blocks, partial
from kofn.streaming import blocks

X = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
X[1, ::7] = 1.0  # where a hard choice of 200 ends
X[2, :5] = [np.inf, -np.inf, np.inf, 3e38, -3e38]


def run(*arguments):
    return CliRunner().invoke(app.app, ["apply", *(str(argument) for argument in arguments)])


def answered(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments, status=2):
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    (line,) = result.stderr.splitlines()
    return line


def failed(*arguments):
    return refused(*arguments, status=1)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A directory with scores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(blocks, "BLOCK", 128)
    np.save("x.npy", X)
    return tmp_path


@pytest.fixture(params=["rows", "blocks"])
def both_ways(request, monkeypatch):
    """Rows are read in memory, or block by block."""
    monkeypatch.setattr(by_blocks, "LONG", 1000 if request.param == "rows" else 999)


HOW = {
    "soft": ([], lambda x: soft_topk(x, 7.5)),
    "cold": (
        ["--map", "laplace", "--temperature", 0.01],
        lambda x: soft_topk(x, 7.5, link="laplace", temperature=0.01),
    ),
    "hard": (["--hard"], lambda x: hard_topk(x, 7.5)),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("soft", dtype) for dtype in (np.float16, np.float32, ">f8", np.int64)),
        *(("hard", dtype) for dtype in (np.float32, ">f8")),
        ("cold", np.float32),
    ],
)
def test_the_file_has_the_weights_of_each_row(name, dtype, both_ways):
    with np.errstate(all="ignore"):
        x = (np.nan_to_num(X, posinf=9, neginf=-9) if dtype == np.int64 else X).astype(dtype)
    x = np.where(np.abs(x) > 1e4, 4, x).astype(dtype) if dtype == np.int64 else x
    np.save("x.npy", x)
    options, wanted = HOW[name]
    assert answered("x.npy", "-k", 7.5, *options, "--out", "w.npy") == "Wrote w.npy\n"
    found = np.load("w.npy")
    x = x.astype(np.float64) if dtype in (np.int64, ">f8") else x
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, wanted(x), rtol=0, atol=1e-3 if dtype == np.float16 else 2e-6)
    assert sorted(os.listdir()) == ["w.npy", "x.npy"]


def test_softmax_and_other_types(both_ways):
    finite = np.nan_to_num(X[:2], posinf=3, neginf=-3)
    np.save("x.npy", finite)
    answered("x.npy", "--map", "softmax", "--dtype", "float64", "--out", "w.npy")
    np.testing.assert_allclose(np.load("w.npy"), softmax(finite.astype(float)), atol=1e-6)
    answered("x.npy", "-k", 3, "--hard", "--dtype", "bool", "--out", "w.npy", "--force")
    assert np.array_equal(np.load("w.npy"), hard_topk(finite, 3).astype(bool))
    answered("x.npy", "--map", "sparse_softmax", "--out", "w.npy", "--force")
    assert np.load("w.npy").sum() == pytest.approx(2)


def test_thresholds_and_json(both_ways):
    wanted = soft_topk_threshold(X, 7)
    lines = answered("x.npy", "-k", 7, "--threshold-only").splitlines()
    np.testing.assert_allclose([float(line) for line in lines], wanted, atol=1e-6)
    printed = json.loads(answered("x.npy", "-k", 1000, "--threshold-only", "--json"))
    assert printed["thresholds"] == ["-inf"] * 3
    printed = json.loads(answered("x.npy", "-k", 7, "--out", "w.npy", "--json"))
    assert (printed["shape"], printed["dtype"], printed["k"]) == ([3, 1000], "float32", 7)
    np.save("x.npy", np.nan_to_num(X, posinf=3, neginf=-3))
    printed = json.loads(answered("x.npy", "-k", 7, "--support", 9, "--threshold-only", "--json"))
    assert (printed["support"], "temperature" in printed, len(printed["thresholds"])) == (
        9,
        False,
        3,
    )


@pytest.mark.parametrize("options", [[], ["--hard"]])
@pytest.mark.parametrize("stop_at", [1, 11])
def test_an_interrupted_run_is_continued(options, stop_at, here, both_ways, monkeypatch):
    monkeypatch.setattr(
        by_blocks, "_some_rows", lambda scores, first: ((row, row + 1) for row in range(first, 3))
    )
    how = ["x.npy", "-k", 200, *options, "--out", "w.npy"]
    answered(*how)
    whole = (here / "w.npy").read_bytes()
    os.remove("w.npy")
    reached, times = partial.Partial.reached, []

    def stop(self, *now):
        reached(self, *now)
        times.append(now)
        if len(times) == stop_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(partial.Partial, "reached", stop)
    result = run(*how)
    if result.exit_code == 0:  # there were fewer rows than that
        return
    assert result.exit_code == 130
    assert result.stderr == "kofn: interrupted; --resume continues w.npy.partial\n"
    assert not os.path.exists("w.npy")
    assert "--resume to continue it, or --force" in refused(*how)
    assert "k = 200.0, not 100.0" in refused(*how, "--resume", "-k", 100)
    before, solve, solved = len(times), by_blocks._solved, []
    monkeypatch.setattr(by_blocks, "_solved", lambda *row: (solved.append(row[1]), solve(*row))[1])
    answered(*how, "--resume")
    assert (here / "w.npy").read_bytes() == whole
    blocks_of = 3 if by_blocks.LONG == 1000 else 24
    assert len(times) - before == blocks_of - stop_at
    # What is known of a row that was begun is not computed again.
    assert solved == ([] if blocks_of == 3 else [1, 2] if stop_at == 1 else [2])
    assert sorted(os.listdir()) == ["w.npy", "x.npy"]


def test_resume_refuses_what_does_not_fit(here, monkeypatch):
    def stop(self, *now):
        raise KeyboardInterrupt

    how = ["x.npy", "-k", 2, "--out", "w.npy"]
    assert "w.npy.progress, which does not exist" in refused(*how, "--resume")
    assert "give only one" in refused(*how, "--resume", "--force")
    with monkeypatch.context() as patch:
        patch.setattr(partial.Partial, "reached", stop)
        assert run(*how).exit_code == 130
    np.save("x.npy", X + 1)
    assert "the scores have changed" in refused(*how, "--resume")
    (here / "w.npy.progress").write_text('{"version": 2, "asked": {"scores": [')
    assert "is damaged" in refused(*how, "--resume")
    answered(*how, "--force")
    assert sorted(os.listdir()) == ["w.npy", "x.npy"]


def test_nothing_of_the_users_is_overwritten(here, monkeypatch):
    def stop(self, *now):
        raise KeyboardInterrupt

    how = ["x.npy", "-k", 2, "--out", "w.npy"]
    with monkeypatch.context() as patch:
        patch.setattr(partial.Partial, "reached", stop)
        assert run(*how).exit_code == 130
    (here / "w.npy").write_bytes(b"precious")
    assert "w.npy exists" in refused(*how, "--resume")
    assert (here / "w.npy").read_bytes() == b"precious"
    for name in ("w.npy.partial", "w.npy.progress"):
        np.save("x.npy", X)
        os.replace("x.npy", name)
        before = (here / name).read_bytes()
        assert "would overwrite the scores" in refused(name, *how[1:], "--force")
        assert (here / name).read_bytes() == before


def test_bad_files_are_named(both_ways):
    def saved(array, **how):
        np.save("bad.npy", array, **how)
        return refused("bad.npy", "-k", 1, "--out", "w.npy")

    holes = np.array(X)
    holes[2, 700] = np.nan
    assert "bad.npy has a NaN in row 3, column 701" in saved(holes)
    assert "entries are Python objects" in saved(np.array([None]), allow_pickle=True)
    assert "dtype complex64" in saved(X.astype(np.complex64))
    assert "give at least one score" in saved(X[:0])
    with open("x.npy", "rb") as file, open("bad.npy", "wb") as short:
        short.write(file.read()[:-1000])
    assert "bad.npy cannot be read as .npy" in refused("bad.npy", "-k", 1, "--out", "w.npy")
    assert sorted(os.listdir()) == ["bad.npy", "x.npy"]
    assert "would overwrite the scores" in refused("x.npy", "-k", 1, "--out", "x.npy", "--force")
    assert "w.npy exists" in (np.save("w.npy", X), refused("x.npy", "-k", 1, "--out", "w.npy"))[1]


def test_fortran_order_is_read_if_small_and_refused_by_name_if_not(monkeypatch):
    np.save("x.npy", np.asfortranarray(X))
    answered("x.npy", "-k", 5, "--out", "w.npy")
    np.testing.assert_allclose(np.load("w.npy"), soft_topk(X, 5), atol=1e-6)
    monkeypatch.setattr(by_blocks, "SMALL", 100)
    assert "is in Fortran order" in refused("x.npy", "-k", 1, "--out", "v.npy")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--threshold-only", "--hard"], "cannot be combined with --hard"),
        (["--threshold-only", "--map", "taylor_softmax"], "needs soft_topk"),
        (["--threshold-only", "--out", "w.npy"], "cannot be combined with --out"),
        (["--dtype", "bool", "--out", "w.npy"], "--dtype must be one of"),
        (["--hard", "-k", 1.5, "--dtype", "bool", "--out", "w.npy"], "needs a whole k"),
        (["--json"], "add --out FILE or --threshold-only"),
        (["--resume"], "--resume needs --out"),
        (["--resume", "--out", "w.csv"], "from .npy file to .npy file"),
        (["-k", 1001, "--out", "w.npy"], "-k must be in [0, 1000]"),
    ],
)
def test_bad_options_are_refused(options, words):
    k = [] if "-k" in options else ["-k", 1]
    assert words in refused("x.npy", *k, *options)


def test_ten_million_scores_take_little_memory(here, monkeypatch):
    monkeypatch.undo()
    os.chdir(here)
    n = 10**7
    x = np.lib.format.open_memmap("long.npy", "w+", np.float32, (n,))
    for start in range(0, n, 10**6):
        x[start : start + 10**6] = np.random.default_rng(start).standard_normal(10**6)
    x.flush()
    scores = np.load("long.npy", mmap_mode="r")
    streaming.soft_topk_threshold(scores[: 10**6], 10)  # what is loaded at first use is no row's
    tracemalloc.start()
    theta = streaming.soft_topk_threshold(scores, 1000)
    chosen = streaming.topk_indices(scores, 1000)
    answered("long.npy", "-k", 1000, "--out", "w.npy")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 32e6, "a copy of the row takes 40 MB"
    weights = np.load("w.npy", mmap_mode="r")
    assert weights.sum(dtype=np.float64) == pytest.approx(1000, rel=1e-6)
    np.testing.assert_allclose(weights[chosen[:9]], 1 / (1 + np.exp(theta - x[chosen[:9]])), 1e-5)
    assert np.array_equal(chosen, np.sort(np.argpartition(-x, 1000)[:1000]))


def test_a_file_that_cannot_get_its_name(here, monkeypatch):
    def full(*paths):
        raise OSError(28, "No space left on device")

    how = ["x.npy", "-k", 2, "--out", "w.npy"]
    with monkeypatch.context() as patch:
        patch.setattr(partial.Partial, "reached", lambda *now: None)
        patch.setattr(files, "place", full)
        assert failed(*how).endswith(": No space left on device; nothing was written")
    assert os.listdir() == ["x.npy"]
    place = files.place
    with monkeypatch.context() as patch:
        patch.setattr(
            files, "place", lambda a, b, may: full() if str(b) == "w.npy" else place(a, b, may)
        )
        assert failed(*how).endswith(": No space left on device; --resume continues w.npy.partial")
    assert sorted(os.listdir()) == ["w.npy.partial", "w.npy.progress", "x.npy"]
    answered(*how, "--resume")
    assert sorted(os.listdir()) == ["w.npy", "x.npy"]


@pytest.mark.parametrize("options", [[], ["--resume"], ["--force"]])
@pytest.mark.parametrize("name", ["w.npy.partial", "w.npy.progress"])
@pytest.mark.parametrize("content", [b"precious", b"", b"{}", b'{"version": 1, "epoch": 3}'])
def test_a_file_of_somebody_else_is_in_the_way(here, name, options, content):
    """A run writes its record first, so that a partial file without one is not of kofn."""
    (here / name).write_bytes(content)
    line = refused("x.npy", "-k", 2, "--out", "w.npy", *options)
    asks = "--resume" in options and name.endswith("partial")
    assert ("--resume needs w.npy.progress" if asks else f"{name} is in the way") in line
    assert (here / name).read_bytes() == content
    assert sorted(os.listdir()) == [name, "x.npy"]


@pytest.mark.parametrize("options", [[], ["--resume"], ["--force"]])
def test_a_run_that_was_killed_before_its_file_was_there_is_begun_anew(here, monkeypatch, options):
    def stop(*now, **how):
        raise SystemExit(9)

    how = ["x.npy", "-k", 2, "--out", "w.npy"]
    with monkeypatch.context() as patch:
        patch.setattr(files, "create", stop)
        patch.setattr(files, "replace", lambda path, content, **_: path.write_bytes(content))
        patch.setattr(partial.Partial, "discard", lambda self: None)
        assert run(*how).exit_code == 9
    assert sorted(os.listdir()) == ["w.npy.progress", "x.npy"]
    answered(*how, *options)
    assert sorted(os.listdir()) == ["w.npy", "x.npy"]


def test_a_new_run_takes_no_record_of_an_older_one(here, monkeypatch):
    """A run that is killed before its first block must not go on from the record of another."""
    (here / "w.npy.partial").write_bytes(b"of an older run")
    (here / "w.npy.progress").write_text('{"version": 1, "asked": {"scores": []}}')

    def stop(*now):
        raise SystemExit(9)

    how = ["x.npy", "-k", 2, "--out", "w.npy"]
    with monkeypatch.context() as patch:
        patch.setattr(by_blocks, "write", stop)
        assert run(*how, "--force").exit_code == 9
    assert sorted(os.listdir()) == ["w.npy.partial", "w.npy.progress", "x.npy"]
    answered(*how, "--resume")
    np.testing.assert_allclose(np.load("w.npy"), soft_topk(X, 2), atol=1e-6)


def test_k_is_asked_for(here):
    for options in ([], ["--hard"], ["--map", "linear"], ["--map", "KSubset"]):
        assert "-k is missing" in refused("x.npy", "--out", "w.npy", *options)
    np.save("x.npy", np.nan_to_num(X, posinf=3, neginf=-3))
    for name in ("softmax", "sparsemax", "taylor_softmax"):  # there is no other k
        answered("x.npy", "--map", name, "--out", "w.npy", "--force")
        assert np.load("w.npy").sum() == pytest.approx(3)


@pytest.mark.parametrize("name", ["w.npy", "w.csv"])
@pytest.mark.parametrize("options", [[], ["--force"], ["--resume"]])
def test_a_folder_that_is_missing_is_told_not_made(here, name, options):
    line = refused("x.npy", "-k", 2, "--out", f"new/deep/{name}", *options)
    assert f"--out new/deep/{name} cannot be written: there is no folder new/deep" in line
    assert os.listdir() == ["x.npy"]


@pytest.mark.parametrize("form", ["rows", "blocks", "in memory"])
@pytest.mark.parametrize("allowed", [0, 1024, 4096])
def test_a_limit_on_the_size_of_files_is_a_failure_of_the_system(here, monkeypatch, form, allowed):
    """Status 2 says that nothing was written; after this, there may be a part of the file."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(by_blocks, "LONG", 999 if form == "blocks" else 1000)
    how = ["x.npy", "-k", 2, "--out", "w.csv" if form == "in memory" else "w.npy"]
    answered("x.npy", "-k", 2, "--out", "warm.npy")  # kernels are stored without a limit
    os.remove("warm.npy")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, before[1]))
    try:
        line = failed(*how)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"--out {how[-1]} cannot be written: File too large; " in line
    if allowed == 0 or form == "in memory":
        assert line.endswith("; nothing was written")
        assert os.listdir() == ["x.npy"]
        return
    assert line.endswith("; --resume continues w.npy.partial")
    assert sorted(os.listdir()) == ["w.npy.partial", "w.npy.progress", "x.npy"]
    assert answered(*how, "--resume") == "Wrote w.npy\n"
    np.testing.assert_allclose(np.load("w.npy"), soft_topk(X, 2), atol=1e-6)
