"""torch.export and AOTInductor: a saved program is right at other batch sizes."""

import io

import pytest
import torch

import kofn
from support import full_but

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def of_alphas(x):
    """One per row is an input of the operator."""
    return kofn.soft_topk_threshold(x, 2, link=kofn.links.entmax(1 + x[:, 0].abs()))


def of_numbers(x):
    return kofn.soft_topk(x, 2.0) + kofn.soft_topk_threshold(x, 2)[..., None]


FUNCTIONS = {function.__name__: function for function in (of_alphas, of_numbers)}


class Choose(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def exported(function):
    rows = {0: torch.export.Dim("rows", min=2, max=4096)}
    return torch.export.export(Choose(function), (torch.randn(3, 6),), dynamic_shapes=(rows,))


def assert_right(program, function):
    x = 3 * torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(program(x), function(x), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("function", full_but(("of_alphas",), FUNCTIONS))
def test_an_exported_program_is_right_after_saving(function):
    file = io.BytesIO()
    torch.export.save(exported(FUNCTIONS[function]), file)
    file.seek(0)
    assert_right(torch.export.load(file).module(), FUNCTIONS[function])


@pytest.mark.full
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_program_compiled_ahead_of_time_is_right(function, tmp_path):
    path = torch._inductor.aoti_compile_and_package(
        exported(function), package_path=str(tmp_path / "choose.pt2")
    )
    assert_right(torch._inductor.aoti_load_package(path), function)


@pytest.mark.parametrize("name", ["soft_topk", "hard_topk", "topk_gates", "topk"])
def test_the_number_of_entries_of_a_program_may_vary(name):
    """No road looks at it before it is known that nobody traces the call."""

    def first(x):
        answer = getattr(kofn, name)(x, 2)
        return answer[0] if isinstance(answer, tuple) else answer

    entries = {1: torch.export.Dim("entries", min=3)}
    program = torch.export.export(
        Choose(first), (torch.randn(3, 6),), dynamic_shapes=(entries,), strict=False
    ).module()
    x = torch.randn(3, 11, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(program(x), first(x), atol=2e-6)
