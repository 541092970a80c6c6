"""The operation that CONTRIBUTING.md declares: its block is right, by kernels and by array code."""

import importlib
import linecache
import re
from textwrap import dedent

import pytest
import torch

from kofn import links, soft_topk
from kofn.adapters import route
from kofn.adapters.torch.operators import register
from kofn.formulas import answers
from kofn.kernels.cpu.rows import passes
from kofn.operations import declared as listed
from kofn.operations import topk
from kofn.operations.makers import summed
from kofn.rows.given import given_for_kernels
from kofn.solver.reductions import DENSE
from places import ROOT


def variance(rows, over=DENSE, *, theta):
    """Step 1 of the page, which leaves writing it to the reader."""
    p = answers.weights(rows, over, theta=theta)
    return over.sum(p * (1 - p))


WAYS = "of formulas", "of functions"


@pytest.fixture(scope="module", params=WAYS)
def declared(request):
    """A declaration, as the page has it, run in the file that the page names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text[text.index("## Add an operation") :].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    name = request.param.replace(" ", "_")
    block = dict(zip(WAYS, map(dedent, blocks), strict=True))[request.param]
    block = block.replace('"variance"', f'"variance_{name}"')
    linecache.cache[name] = len(block), None, block.splitlines(keepends=True), name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "PASSES", [])  # no kernel of kofn's own
        patch.setattr(answers, "variance", variance, raising=False)
        names = vars(topk) | {"Pass": passes.Pass, "summed": summed}
        exec(compile(block, name, "exec"), names)
        if "SPREAD" in names:
            patch.setattr(topk, "SPREAD", names["SPREAD"], raising=False)
        register(names["VARIANCE"])
        yield names["VARIANCE"]
    del linecache.cache[name]


def test_an_operation_is_declared_by_standing_in_its_file(declared, monkeypatch):
    known = listed.DECLARED
    monkeypatch.setattr(topk, "VARIANCE", declared, raising=False)
    monkeypatch.setattr(topk, "VARIANCE_BACK", declared.back[0], raising=False)
    try:
        assert {*importlib.reload(listed).DECLARED} - {*known} == {declared}
    finally:
        monkeypatch.undo()
        assert known == importlib.reload(listed).DECLARED


@pytest.mark.pairs
@pytest.mark.parametrize("kernels", ["on", "reference"])
def test_the_operation_has_its_values_and_derivatives(declared, kernels, monkeypatch):
    monkeypatch.setenv("KOFN_KERNELS", kernels)
    x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    k = torch.tensor([1.0, 2.5, 4.0], dtype=torch.float64)
    t = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    leaves = [each.requires_grad_() for each in (x, k, t)]

    def spread(x, k, t):
        return route.answer(declared, given_for_kernels(x, k, links.logistic, t, -1, None))

    p = soft_topk(x, k, temperature=t)
    torch.testing.assert_close(spread(*leaves), (p * (1 - p)).sum(-1))
    assert torch.autograd.gradcheck(spread, leaves)
    assert torch.autograd.gradgradcheck(spread, leaves)
