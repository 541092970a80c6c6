"""A token with a NaN counts as masked for all others, in every way to choose and to balance."""

import copy
import itertools
import warnings

import pytest
import torch

from kofn.nn.routing import routing
from kofn.nn.routing.checks import BALANCED, EACH_K, JOINT
from kofn.nn.routing.routing import Routing
from kofn.nn.routing.selection import ALONE, SELECTIONS, bad_tokens

E, T, K, BAD = 8, 64, 2, 5


def ways():
    """Every selection with every balance, function of scores, running threshold and groups."""
    balances = ({}, {"balance": 0.1}, *({"balance": "quantile", "bins": n} for n in (None, 50)))
    for selection in SELECTIONS:
        for balance in balances if selection in BALANCED else balances[:1]:
            yield {"selection": selection, **balance}
            if selection in BALANCED:
                yield {"selection": selection, "score_function": "sigmoid", **balance}
            if balance and selection == "hard":
                yield {"selection": selection, "n_group": 4, "topk_group": 2, **balance}
                if balance["balance"] == "quantile":
                    yield {"selection": selection, "per_sequence": True, **balance}
        if selection in (*JOINT, "assignment"):
            yield {"selection": selection, "inference_threshold": True}
        if selection in (*EACH_K, *JOINT):
            yield {"selection": selection, "gates": "topk"}


def name_of(way):
    return "-".join(f"{value}" for value in way.values())


every_way = pytest.mark.parametrize("way", list(ways()), ids=name_of)
every_mask = pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])


def router(way):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Routing(E, K, **way)


def scores_of(seed, bad=None):
    scores = torch.randn(T, E, generator=torch.Generator().manual_seed(seed))
    scores += torch.arange(E) / 4  # uneven loads
    if bad is not None:
        scores[BAD, 3] = bad
    return scores


def mask_of(masked, without=None):
    """The padding, if there is some, and a token that is left out; or no mask."""
    if not masked and without is None:
        return None
    mask = torch.ones(T, dtype=torch.bool)
    mask[10:14] = not masked
    if without is not None:
        mask[without] = False
    return mask


def pulled(net, scores, mask):
    """Weights, indices, and the gradient of random sums of the weights."""
    scores = scores.clone().requires_grad_()
    weights, indices = net.choose(scores, mask, T)
    v = torch.randn(weights.shape, generator=torch.Generator().manual_seed(9))
    (gradient,) = torch.autograd.grad((weights * v)[others(weights)].sum(), scores)
    return weights.detach(), indices, gradient


def others(of_tokens):
    here = torch.ones(len(of_tokens), dtype=torch.bool)
    here[BAD] = False
    return here


def state_of(net):
    found = dict(net.state_dict())
    found |= {
        f"{name}.{each}": getattr(part, each)
        for name, part in net.named_modules()
        for each in getattr(part, "SUMS", ())
    }
    return found


@every_way
@every_mask
def test_a_token_with_a_nan_counts_as_masked(way, masked):
    net = router(way)
    left_out = copy.deepcopy(net)
    for seed in range(3):
        found = pulled(net, scores_of(seed, torch.nan), mask_of(masked))
        wanted = pulled(left_out, scores_of(seed), mask_of(masked, without=BAD))
        here = others(found[0])
        assert all(torch.equal(a[here], b[here]) for a, b in zip(found, wanted, strict=True))
        assert found[0][BAD].isnan().all()
        states = state_of(net), state_of(left_out)
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])
        net.step()
        left_out.step()
    clean = scores_of(7), mask_of(masked)
    for each in (net, left_out):
        each.eval()
    answers = [each.choose(*clean) for each in (net, left_out)]
    assert all(torch.equal(*pair) for pair in zip(*answers, strict=True))
    assert answers[0][0].isfinite().all()
    weights = net.choose(scores_of(8, torch.nan), mask_of(masked))[0]
    assert weights[BAD].isnan().all()
    assert weights[others(weights)].isfinite().all()


@every_way
def test_the_gradient_of_a_token_with_a_nan_is_nan_and_of_a_masked_one_0(way):
    net = router(way)
    scores = scores_of(0, torch.nan).requires_grad_()
    (gradient,) = torch.autograd.grad(net.choose(scores, None, T)[0].sum(), scores)
    assert gradient[BAD].isnan().all()
    weights = net.choose(scores, mask_of(True, without=BAD), T)[0]
    assert not weights[BAD].any()
    (gradient,) = torch.autograd.grad(weights.sum(), scores)
    assert not gradient[BAD].any()
    assert gradient.isfinite().all()


@every_way
def test_tokens_of_nan_alone_move_no_bias(way):
    net = router(way)
    before = {name: value.clone() for name, value in state_of(net).items()}
    for _ in range(2):
        assert net.choose(torch.full((9, E), torch.nan), None, 9)[0].isnan().all()
        after = state_of(net)
        assert not net.counts.any()
        net.step()
    after = state_of(net)
    kept = [name for name in after if "updates" not in name]
    assert all(torch.equal(before[name], after[name]) for name in kept)


@pytest.mark.parametrize(
    ("way", "bad"),
    [
        (way, bad)
        for way, bad in itertools.product(ways(), (torch.nan, torch.inf, -torch.inf, None))
        if way["selection"] in ("hard", "soft") and "per_sequence" not in way
    ],
    ids=str,
)
def test_a_token_that_chooses_by_itself_changes_no_other(way, bad):
    """Of each kind of bad entry, `None` is a mask."""
    net = router(way)
    wanted = pulled(net, scores_of(0), None)
    mask = mask_of(False, without=BAD) if bad is None else None
    found = pulled(net, scores_of(0, bad), mask)
    here = others(found[0])
    assert all(torch.equal(a[here], b[here]) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("shape", [(9, 8), (700, 8), (0, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_a_nan_makes_a_token_bad(shape, dtype):
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert bad_tokens(scores) is None
    if shape[0]:
        scores[2, 1], scores[2, 2] = torch.inf, -torch.inf
        assert bad_tokens(scores) is None or not bad_tokens(scores).any()
        scores[-1, -1] = torch.nan
        assert bad_tokens(scores).nonzero().tolist() == [[shape[0] - 1]]


@pytest.mark.parametrize("selection", SELECTIONS)
def test_scores_are_looked_at_only_for_other_tokens_or_the_load(selection, monkeypatch):
    looks = []
    monkeypatch.setattr(routing, "bad_tokens", lambda scores: looks.append(scores))
    monkeypatch.setattr(routing, "at_once", lambda *_: None)  # compiled code looks by itself
    net = router({"selection": selection})
    for training in (True, False):
        looks.clear()
        net.train(training).choose(scores_of(0))
        assert len(looks) == (training or selection not in ALONE)
