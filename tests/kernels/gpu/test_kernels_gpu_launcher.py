"""Launches of Triton's kernels, where there is no GPU: which program serves which arguments."""

import itertools
from unittest import mock

import pytest
import torch

try:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import CompiledKernel, make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    from kofn.kernels.gpu import launcher
    from kofn.kernels.gpu.rows import launch, many_programs, one_program
except ImportError:
    pytest.skip("Triton has no release for this system", allow_module_level=True)

DTYPES = torch.float32, torch.float16, torch.bfloat16
CONSTANTS = 0, 8, 64, 64, True
OPTIONS = launch.options_of(4)
SIZES = 1, 2, 15, 16, 17, 32, 2**31 - 16, 2**31 - 1, 2**31, 2**40 + 1
EACH = torch.ones(64)


def scores(dtype=torch.float32, odd=False):
    return torch.zeros(65, dtype=dtype)[1:] if odd else torch.zeros(64, dtype=dtype)


def given(x, k=2.0, t=1.0, count=8, n=8, alpha=1.5):
    return one_program.Given(x, k, t, torch.zeros(2, 32), count, n, alpha)


class Program(CompiledKernel):
    """What Triton gives for a launch, without a device."""

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        return lambda *arguments: self.calls.append((grid, arguments))


@pytest.fixture
def compiled():
    """The programs that Triton was asked for."""
    found = []

    def run(self, *arguments, grid, warmup, **options):
        found.append(Program())
        return found[-1]

    with (
        mock.patch.object(JITFunction, "run", run),
        mock.patch.dict(launcher._PROGRAMS, clear=True),
    ):
        yield found


def launched(rows, out=None, kernel=one_program.forward, options=OPTIONS, constants=CONSTANTS):
    launcher.launch(kernel, 3, rows, (rows.x_at if out is None else out,), constants, options)


def test_triton_finds_a_program_once(compiled):
    rows = given(scores())
    for _ in range(3):
        launched(rows)
    (program,) = compiled
    assert [grid for grid, _ in program.calls] == [(3, 1, 1)] * 2
    assert program.calls[0][1] == (rows, rows.x_at, *CONSTANTS)


@pytest.mark.parametrize(
    "other",
    [
        lambda: launched(given(scores(torch.float16))),
        lambda: launched(given(scores(), k=EACH)),
        lambda: launched(given(scores(), t=EACH)),
        lambda: launched(given(scores(), alpha=EACH)),
        lambda: launched(given(scores(), n=1)),
        lambda: launched(given(scores(), n=16)),
        lambda: launched(given(scores(), count=1)),
        lambda: launched(given(scores(), count=2**31 + 1)),
        lambda: launched(given(scores()), scores(torch.float16)),
        lambda: launched(given(scores()), constants=(*CONSTANTS[:-1], False)),
        lambda: launched(given(scores()), options=launch.options_of(8)),
        lambda: launched(given(scores()), kernel=many_programs.begin),
    ],
)
def test_other_arguments_have_another_program(other, compiled):
    launched(given(scores()))
    launched(given(scores()))
    assert len(compiled) == 1
    other()
    assert len(compiled) == 2


def test_another_device_has_another_program(compiled):
    launched(given(scores()))
    with mock.patch.object(torch.Tensor, "get_device", return_value=1):
        launched(given(scores()))
    assert len(compiled) == 2


def test_where_an_address_is_odd_triton_is_asked(compiled):
    """It would read sixteen bytes at once from there."""
    launched(given(scores()))
    for rows, out in (
        (given(scores(odd=True)), scores()),
        (given(scores()), scores(odd=True)),
        (given(scores(), k=scores(odd=True)), scores()),
    ):
        before = len(compiled)
        launched(rows, out)
        launched(rows, out)
        assert len(compiled) == before + 2
    launched(given(scores()))
    assert len(compiled[0].calls) == 1


def test_arguments_of_a_program_are_one_to_triton():
    """What Triton compiles for is the same wherever the launcher takes the same program."""
    kernel = one_program.forward
    backend = make_backend(GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    found = {}
    numbers = (2.0, EACH, scores(odd=True))
    for dtype, odd, k, count, n in itertools.product(DTYPES, (False, True), numbers, SIZES, SIZES):
        x = scores(dtype, odd)
        rows, kinds = given(x, k, count=count, n=n), []
        usual = launcher._add_kinds(kinds, rows) and launcher._add_kinds(kinds, (x,))
        assert usual == (not odd and k is not numbers[2])
        if usual:
            seen = str(bind(rows, x, *CONSTANTS)[1])
            assert found.setdefault(tuple(kinds), seen) == seen
    assert len(found) >= 2 * len(DTYPES) * 4 * 4


def test_launches_go_to_the_device_of_the_scores(monkeypatch):
    """The current one is asked first: to change it and back takes as long as a launch."""
    x = mock.Mock(is_cuda=True, device="cuda:1", get_device=lambda: 1)
    entered = mock.Mock()
    monkeypatch.setattr(torch.cuda, "device", entered)
    for current, wanted in ((1, 0), (0, 1)):
        monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
        launcher.device_of(x)
        assert entered.call_count == wanted
    entered.assert_called_once_with("cuda:1")
