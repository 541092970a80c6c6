"""torch.export and AOTInductor: a saved program is right at other batch sizes."""

import io

import pytest
import torch

import kofn

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


class Choose(torch.nn.Module):
    def forward(self, x):
        alphas = kofn.links.entmax(1 + x[:, 0].abs())  # per row, an input of the operator
        return kofn.soft_topk(x, 2.0), kofn.soft_topk_threshold(x, 2, link=alphas)


def exported():
    rows = {0: torch.export.Dim("rows", min=2, max=4096)}
    return torch.export.export(Choose(), (torch.randn(3, 6),), dynamic_shapes=(rows,))


def assert_right(program):
    x = 3 * torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    for ours, theirs in zip(program(x), Choose()(x), strict=True):
        assert torch.allclose(ours, theirs, atol=2e-6, rtol=2e-6)


def test_an_exported_program_is_right_after_saving():
    file = io.BytesIO()
    torch.export.save(exported(), file)
    file.seek(0)
    assert_right(torch.export.load(file).module())


@pytest.mark.full
def test_a_program_compiled_ahead_of_time_is_right(tmp_path):
    path = torch._inductor.aoti_compile_and_package(
        exported(), package_path=str(tmp_path / "choose.pt2")
    )
    assert_right(torch._inductor.aoti_load_package(path))
