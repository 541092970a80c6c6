"""`kofn bench`: right before it is fast, and whole files or none."""

import io
import json
import os
import re
import time
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import kofn
from kofn.commands import app
from kofn.commands.bench import calls, cases, contenders, devices, measure, recipes, report, special
from kofn.kernels.cpu.runtime import library


@pytest.fixture(autouse=True)
def the_number_of_threads_comes_back():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def less_to_compile(monkeypatch):
    monkeypatch.setattr(contenders, "_jax", lambda k, versions: iter(()))
    for module in (calls, contenders):
        monkeypatch.setattr(module, "compiled", lambda function: function)


def run(*arguments):
    return CliRunner().invoke(app.app, ["bench", *arguments])


def test_bench_times_what_runs_and_writes_both_files(tmp_path, monkeypatch):
    small = (cases.Case("router", (8, 16), 2),)
    monkeypatch.setattr(cases, "CASES", small)
    less_to_compile(monkeypatch)
    result = run("--rounds", "2", "--threads", "1", "--busy", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [(each["case"], each["dtype"]) for each in found["results"]] == [
        ("router", "float32"),
        ("router", "bfloat16"),
    ]
    ours = [c for c in found["results"][0]["contenders"] if c["group"] == "kofn"]
    assert len(ours) == len(kofn.links.TABLE) + 4
    for each in ours:
        assert each["trouble"] is None
        assert set(each["ratio_to_softmax"]) == {"forward", "forward + backward"}
    assert found["machine"]["level"].startswith("x86-64-v") or not library.served()
    page = (tmp_path / "out" / "bench.md").read_text()
    for what in ("level", "commit", "level_of_torch"):
        assert str(found["machine"][what] or "") in page.split("\n")[0]
    assert "| soft_topk, logistic |" in page
    assert "Router: 8 × 16, k = 2, float32" in page


def test_bench_times_nothing_that_is_wrong(monkeypatch):
    def wrong(case):
        softmax = recipes.softmax
        yield cases.Contender("half", "peer", lambda x: x.softmax(-1) / 2, softmax)
        still = lambda x: x.detach().softmax(-1) + 0 * x  # noqa: E731
        yield cases.Contender("still", "peer", still, softmax)

    monkeypatch.setattr(measure, "contenders", wrong)
    case = cases.Case("tiny", (2, 3), 1)
    timings, _ = measure.measure(case, "float32", 2, lambda name: None)
    for timing, trouble in zip(timings, ("wrong by", "gradient wrong by"), strict=True):
        assert timing.trouble.startswith(trouble)
        assert not timing.ratios


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--case", "cluster"],
            "--case must be one of router, attention, vocabulary, pruning, losses",
        ),
        (["--dtype", "float8"], "--dtype must be one of float32, bfloat16"),
        (["--rounds", "1"], "--rounds must be at least 2; got 1"),
        (["--threads", "0"], "--threads must be at least 1; got 0"),
        (["--device", "tpu"], "--device must be one of cpu, cuda, mps, xpu; got 'tpu'"),
    ],
)
def test_bench_refuses_what_it_does_not_have(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def timed(name, beside, framework="torch", ratios=None):
    contender = cases.Contender(name, "kofn", None, None, framework)
    passes = dict.fromkeys(measure.PASSES)
    ratios = {what: ratios or [1234.5, 1000.0] for what in passes}
    seconds = dict.fromkeys(passes, beside)
    memory = dict.fromkeys(passes, 123_400_000) if framework == "torch" else {}
    return measure.Timing(contender, seconds, ratios, seconds, memory)


def test_the_table_keeps_its_columns_in_80_characters():
    names = ("torch.softmax", "soft_topk, exponential (JAX)")
    timings = [timed(name, [0.0123, 0.0125]) for name in names]
    wrong = measure.Timing(timings[0].contender, trouble="RuntimeError: " + "words " * 40)
    case = cases.Case("vocabulary", (64, 32768), 64)
    result = report.Result(case, "bfloat16", 1e10, [*timings, wrong])
    console = Console(width=80, file=io.StringIO())
    console.print(report.as_rich(result))
    text = console.file.getvalue()
    assert "…" not in text.split("A copy")[0]
    assert max(map(len, text.splitlines())) <= 80
    for column in report.SHORT_COLUMNS:
        assert column in text
    assert text.count("1117 ±59") == 4
    assert "torch.softmax was not timed: RuntimeError" in text


@pytest.mark.parametrize(("slow", "busy"), [(1.2, False), (2.5, True)])
def test_a_busy_machine_is_told(slow, busy):
    quiet = timed("softmax", [1.0] + [7.9] * 5, framework="jax")  # as on an idle machine
    loud = timed("entmax", [1.0] + [slow] * 5)
    assert measure.slowdown([quiet, loud]) == slow
    case = cases.Case("router", (8, 16), 2)
    result = report.Result(case, "float32", 1e10, [quiet, loud])
    assert ("busy" in result.warning) == busy
    about = {**report.machine(1), "peers": {}}
    assert (b"The machine was busy" in report.as_markdown(about, [result])) == busy
    (found,) = json.loads(report.as_json(about, [result]))["results"]
    assert found["softmax_over_its_best"] == slow
    assert measure.slowdown([]) == 1.0


@pytest.mark.parametrize("options", [[], ["--busy"]])
def test_a_busy_machine_writes_nothing_unless_it_is_told_to(options, tmp_path, monkeypatch):
    loud = timed("entmax", [1.0] + [3.0] * 5)
    monkeypatch.setattr(measure, "measure", lambda *given: ([loud], 1e10))
    monkeypatch.setattr(cases, "CASES", cases.CASES[:1])
    result = run("--dtype", "float32", "--out", str(tmp_path / "out"), *options)
    assert result.exit_code == (0 if options else 1)
    assert "softmax itself took 3.0 times its best" in " ".join(result.output.split())
    if options:
        assert "The machine was busy" in (tmp_path / "out" / "bench.md").read_text()
    else:
        said = " ".join(result.stderr.split())
        assert "the machine was busy (router: 4,096 × 64, k = 8, float32), so nothing" in said
        assert "--busy" in said
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [[], ["--busy"]])
def test_a_case_that_others_disturbed_is_timed_again_before_nothing_is_written(
    options, tmp_path, monkeypatch
):
    disturbed, calm = (timed("entmax", [1.0] + [slow] * 5) for slow in (3.0, 1.1))
    left = [disturbed, disturbed, calm]
    monkeypatch.setattr(measure, "measure", lambda *given: ([left.pop(0)], 1e10))
    monkeypatch.setattr(cases, "CASES", cases.CASES[:1])
    result = run("--dtype", "float32", "--out", str(tmp_path / "out"), *options)
    assert result.exit_code == 0
    assert len(left) == (2 if options else 0)
    written = (tmp_path / "out" / "bench.md").read_text()
    assert ("The machine was busy" in written) == bool(options)


def test_a_width_of_vectors_has_compiled_code_of_its_own(tmp_path, monkeypatch):
    """PyTorch's cache does not ask for the width: code of AVX-512 wrote half of what it had to."""
    monkeypatch.setattr(measure, "measure", lambda *given: ([], 1e10))
    monkeypatch.setattr(cases, "CASES", cases.CASES[:1])
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "none")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    for before, after in (("mine", "mine"), (None, "avx2")):
        if before:
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", before)
        else:
            monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
        assert run("--dtype", "float32").exit_code == 0
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"].endswith(after)


def test_the_timings_of_a_pass_are_one_line(tmp_path):
    case = cases.Case("router", (8, 16), 2)
    result = report.Result(case, "float32", 1e10, [timed("entmax", [1.0, 2.5])])
    page = report.as_json({**report.machine(1), "peers": {}}, [result]).decode()
    assert '"shape": [8, 16]' in page
    assert '"forward": [1.0, 2.5]' in page


def test_the_floor_is_in_nanoseconds_of_an_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(cases, "FLOOR", ((4, 16), (2, 32)))
    out = tmp_path / "out"
    result = run("--case", "floor", "--rounds", "2", "--threads", "1", "--busy", "--out", str(out))
    assert result.exit_code == 0, result.output
    found = json.loads((out / "bench.json").read_text())["results"]
    assert [each["shape"] for each in found] == [[4, 16], [2, 32]]
    by_name = {each["name"]: each for each in found[0]["contenders"]}
    assert {"copy", "max", "exp", "np.partition", "np.sort", "hard_topk"} < {*by_name}
    assert not [each for each in by_name.values() if each["trouble"]]
    assert [*by_name["np.sort"]["seconds"]] == ["forward"]
    page = (out / "bench.md").read_text()
    row = re.search(r"\| exp \| .*? \|  \| (\S+) ", page)
    median = measure.quartiles(by_name["exp"]["seconds"]["forward"])[1]
    assert float(row[1]) == pytest.approx(1e9 * median / 64, rel=1e-2)
    assert "| ns per entry |" in page


def test_small_calls_are_in_microseconds_of_one_of_several(tmp_path, monkeypatch):
    monkeypatch.setattr(cases, "CALLS", ((4, 16),))
    monkeypatch.setattr(calls, "compiled", lambda function: function)
    out = tmp_path / "out"
    result = run("--case", "calls", "--rounds", "2", "--threads", "1", "--busy", "--out", str(out))
    assert result.exit_code == 0, result.output
    (found,) = json.loads((out / "bench.json").read_text())["results"]
    assert found["shape"] == [4, 16]
    assert not [each for each in found["contenders"] if each["trouble"]]
    of = next(each for each in found["contenders"] if each["name"] == "gumbel_softmax")
    median = measure.quartiles(of["seconds"]["forward"])[1]
    row = re.search(r"\| gumbel_softmax \|.*?\|.*?\| (\S+) ", (out / "bench.md").read_text())
    assert float(row[1]) == pytest.approx(1e6 * median, rel=1e-2)
    called, times = [], iter([1.0, 6.0])
    monkeypatch.setattr(measure, "clock", lambda: ("", times.__next__))
    assert measure._runner({"forward": lambda: called.append(1)}, None, 20)("forward") == 5 / 20
    assert len(called) == 20


@pytest.mark.full
def test_newton_in_a_bracket_is_right():
    case = cases.Case("router", (4, 24), 5)
    (one,) = (each for each in contenders.contenders(case) if "Newton" in each.name)
    x = torch.randn(4, 24, generator=torch.Generator().manual_seed(0))
    assert measure._check(one, case, x, measure._passes(one, [x]), None) == ""


@pytest.mark.parametrize(
    "name", [pytest.param("compile", marks=pytest.mark.full), "jax", "half", "knapsack"]
)
def test_other_backends_are_right(name):
    """Each passes the check of its answer and gradient; nothing is timed here."""
    if name in ("jax", "knapsack"):
        pytest.importorskip("jax")
    (case,) = (each for each in cases.CASES if each.name == name)
    x = torch.randn(4, 24, generator=torch.Generator().manual_seed(0))
    x = x.to(getattr(torch, case.dtypes[0]))
    small = cases.Case(name, (4, 24), 5)
    wanted = {
        "compile": (
            "soft_topk, logistic, compiled",
            "softmax_loss, compiled",
            "hard=True, compiled",
        ),
        "jax": ("soft_topk, logistic (JAX)", "KSubset.marginals (JAX)"),
        "half": ("soft_topk, logistic", "topk_loss"),
        "knapsack": (
            "soft_knapsack, logistic",
            "soft_knapsack, hard=True",
            "soft_knapsack_value",
            "soft_knapsack_value (JAX)",
        ),
    }[name]
    found = [one for one in contenders.contenders(small) if one.name in wanted]
    assert len(found) == len(wanted)
    for one in found:
        assert measure._check(one, small, x, measure._passes(one, [x]), None) == ""


def test_with_one_thread_other_work_on_the_machine_does_not_count():
    torch.set_num_threads(2)
    assert measure.clock()[0] == "time"
    torch.set_num_threads(1)
    assert measure.clock()[0] == "processor time"
    took = measure._runner({"forward": lambda: time.sleep(0.05)}, None, 1)("forward")
    assert took < 0.04


class Event:
    """One on the host's clock."""

    def __init__(self):
        self.at = 0.0

    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)


@pytest.fixture
def stood_in(monkeypatch):
    """The CPU in place of a GPU with a small cache."""
    held = [0, 1000]
    gpu = devices.Device(
        "cpu", Event, lambda: None, 2048, 2, lambda: held[0], lambda: held[1], lambda: None
    )
    monkeypatch.setattr(devices, "of", lambda name: None if name == "cpu" else gpu)
    monkeypatch.setattr(devices, "COPIED", 4096)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    on_device = cases.on_device
    monkeypatch.setattr(cases, "on_device", lambda case, name: on_device(case, "cpu"))
    monkeypatch.setattr(cases, "FLOOR", ((8, 16),))
    monkeypatch.setattr(cases, "CALLS", ((8, 16),))
    return gpu


@pytest.mark.parametrize("name", [case.name for case in cases.CASES if case.name != "jax"])
def test_every_case_is_timed_on_a_device(name, stood_in, tmp_path, monkeypatch):
    small = [cases.replace(c, shape=(8, 16), k=2) for c in cases.CASES if c.name == name]
    monkeypatch.setattr(cases, "CASES", small)
    less_to_compile(monkeypatch)
    nothing = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(special, "importlib", nothing)
    monkeypatch.setattr(contenders, "PEERS", dict.fromkeys(contenders.PEERS, "no_module"))
    result = run("--device", "cuda", "--rounds", "2", "--busy", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert found["machine"]["device"] == "cpu"
    for case in found["results"]:
        for each in case["contenders"]:
            assert each["trouble"] is None, each
            assert each["extra_bytes"]["forward"] == 1000


def test_scores_on_a_device_are_none_that_its_cache_has(stood_in):
    x = torch.randn(8, 16)
    pool = stood_in.fresh(x)
    assert sum(each.numel() * 4 for each in pool) > 2 * stood_in.cache
    passes = measure._torch_passes(lambda x: x.clone(), pool, x.dtype)
    seen = {tuple(passes["forward"]().flatten().tolist()) for _ in pool}
    assert len(seen) == len(pool)


def test_large_shapes_are_for_devices():
    for case in cases.CASES:
        if case.name in ("floor", "balance", "calls"):  # have shapes of their own
            continue
        assert [each.name for each in cases.on_device(case, "cpu")] == [case.name]
        there = list(cases.on_device(case, "cuda"))
        assert len(there) == 1 + (case.name in cases.LARGE)
        assert all(each.device == "cuda" for each in there)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_an_error_by_name():
    result = run("--device", "cuda")
    assert result.exit_code == 2
    assert "--device cuda: PyTorch" in result.output
    assert "finds no such device here" in result.output
