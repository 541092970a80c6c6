"""Ways back in closed form, for eager torch without kernels: dense rows and segments."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kofn.adapters import route
from kofn.operations.logarithms import LOG_WEIGHTS
from kofn.operations.losses import PLAIN_LOSS
from ragged_rows import Ragged, check, rows_for
from support import Framework


@pytest.mark.parametrize("link", ["logistic", pytest.param("normal", marks=pytest.mark.full)])
@pytest.mark.parametrize("closed", [LOG_WEIGHTS, PLAIN_LOSS], ids=["log_weights", "gap"])
def test_closed_forms_are_those_of_dense_rows(closed, link):
    """Eager torch with gradients in scores and temperature alone."""
    ragged = Ragged(rows_for(link), Framework("torch"), link=link)
    found = []
    for dense in (False, True):
        x, k, t = ragged.arguments(dense)
        leaves = [x.clone().requires_grad_(), t.clone().requires_grad_()]
        extra = [torch.full_like(x, 0.3)] if closed is PLAIN_LOSS else []
        form = None if dense else SimpleNamespace(over=ragged.over)
        what = ragged.given(leaves[0], k, leaves[1])._replace(form=form)
        answer = route.by_array_code(closed, what, *extra)
        v = ragged.entries(np.cos(np.arange(len(ragged.places[0]))), dense)
        v = v if answer.shape == x.shape else torch.cos(torch.arange(len(k)).double())
        first = torch.autograd.grad(answer, leaves, v, create_graph=True)
        again = torch.autograd.grad(first[0].nan_to_num().pow(2).sum(), leaves)
        found.append([ragged.in_order(a, dense) for a in (answer, *first, *again)])
    for got, wanted in zip(*found, strict=True):
        check(got, wanted, 1e-9)
