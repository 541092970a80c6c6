"""Compiled functions whose sizes are symbols: arguments as numbers, inputs and parameters."""

import pytest
import torch

import kofn
from support import each_compiler


class Choice(torch.nn.Module):
    """A soft top-k whose arguments are learned, one per head."""

    def __init__(self, heads: int, alpha: bool) -> None:
        super().__init__()
        self.k = torch.nn.Parameter(torch.linspace(1.5, 3.0, heads))
        self.temperature = torch.nn.Parameter(torch.linspace(0.5, 2.0, heads))
        self.alpha = torch.nn.Parameter(torch.linspace(1.2, 1.9, heads)) if alpha else None

    def forward(self, scores):
        link = "logistic" if self.alpha is None else kofn.links.entmax(self.alpha)
        return kofn.soft_topk(scores, self.k, temperature=self.temperature, link=link)


@pytest.fixture(autouse=True)
def forgotten():
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("dynamic", [False, True, None], ids=["fixed", "dynamic", "automatic"])
@pytest.mark.parametrize("alpha", [False, True], ids=["logistic", "alpha"])
def test_parameters_per_head_meet_scores_of_any_batch(dynamic, alpha):
    module = Choice(5, alpha)
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for batch in (3,) if dynamic is False else (3, 4, 6):
        scores = torch.randn(batch, 5, 9)
        answers = []
        for run in (module, compiled):
            module.zero_grad()
            weights = run(scores)
            weights.square().sum().backward()
            answers.append([weights.detach(), *(p.grad.clone() for p in module.parameters())])
        for eager, other in zip(*answers, strict=True):
            torch.testing.assert_close(other, eager, atol=1e-6, rtol=1e-5)


@each_compiler
@pytest.mark.parametrize("dynamic", [True, None], ids=["dynamic", "automatic"])
def test_a_temperature_per_row_may_be_an_input(dynamic, backend):
    def weights(x, temperature):
        return kofn.soft_topk(x, 2, temperature=temperature)

    compiled = torch.compile(weights, fullgraph=True, dynamic=dynamic, backend=backend)
    for rows in (5, 6):
        x, temperature = torch.randn(rows, 9), torch.rand(rows) + 0.5
        torch.testing.assert_close(compiled(x, temperature), weights(x, temperature))
