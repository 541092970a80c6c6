"""A call of everything public with PyTorch tensors: `CALLS`, name by name.

The names come from tests/signatures.txt. What stands there has a call here, or is in `UNCALLED`
with the reason; tests/test_package_defaults.py compares the two.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kofn
from kofn import estimators, nn, schedules, streaming
from kofn.feature_selection import SoftTopKSelector
from kofn.integrations import expert_bias

SNAPSHOT = Path(__file__).with_name("signatures.txt")
FUNCTIONS = "", ".losses", ".metrics", ".classic", ".projections", ".distributed"
"""Modules whose functions are called with what `GIVEN` has for their arguments."""
OWN = dict(device="cpu", dtype=torch.float32)
"""Of modules: what they are made with does not come from a default."""

_rng = torch.Generator().manual_seed(5)
X = torch.randn(3, 6, generator=_rng)
MATRIX = torch.randn(6, 4, generator=_rng)
COST = torch.randn(6, generator=_rng)
SUBSET = kofn.hard_topk(X, 2)
INDICES = kofn.topk(X, 2).indices
PTR, STEP = torch.tensor([0, 2, 3]), torch.tensor(3)
TABLE = np.random.default_rng(5).normal(size=(40, 6))


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def cost(sample: Tensor) -> Tensor:
    return (sample * COST).sum(-1)


GIVEN: dict[str, Any] = {
    "alpha": 1.5,
    "axis_name": None,
    "budget": 2.0,
    "c": 2.0,
    "costs": X.exp(),
    "indices": INDICES,
    "k": 2,
    "lower": 0.0,
    "mask": torch.arange(6).expand(3, 6) < 5,
    "mean": X,
    "ptr": PTR,
    "q": 0.3,
    "rng": rng,
    "scale": 1.5,
    "support": 2.5,
    "target": torch.tensor([0, 4, 2]),
    "temperature": 0.7,
    "upper": 1.0,
    "w": 1.0,
    "weights": kofn.soft_topk(X, 2),
}
"""What a function gets, by the name of its argument; the first argument is the scores, if it is
not here. It is left out where the default serves, but for those of `ALWAYS`."""
ALWAYS = "mask", "ptr", "temperature", "rng"
OTHER: dict[str, dict[str, Any]] = {
    "kofn.softmax": {"weights": X.exp()},
    "kofn.sparse_softmax": {"p": 0.8},
    "kofn.quantile": {"dim": -1},
    "kofn.soft_assignment": {"k": 1, "mask": None},
    "kofn.soft_assignment_prices": {"k": 1, "mask": None},
    "kofn.losses.sparse_softmax_loss": {"k": 3},
    **{f"kofn{room}.fenchel_young_loss": {"target": SUBSET} for room in ("", ".losses")},
    **{f"kofn{room}.topk_loss": {"target": SUBSET} for room in (".losses", ".distributed")},
    "kofn.losses.segment_topk_loss": {"target": SUBSET},
    **{
        f"kofn.segment_{name}": {"k": 1}
        for name in ("hard_topk", *(f"soft_topk{end}" for end in ("", "_sum", "_threshold")))
    },
    "kofn.distributed.fenchel_young_loss": {"target": SUBSET},
}
"""Arguments of some functions alone."""

UNCALLED = {
    "kofn.Link": "by kofn.links.Link",
    "kofn.PlackettLuce.to_torch": "refused",
    "kofn.estimators.Distribution": "a protocol",
    "kofn.estimators.Study": "made by study",
    "kofn.estimators.TABLE": "names",
    "kofn.schedules.Schedule": "made by the functions",
    "kofn.schedules.UntilHard": "made by until_hard",
    "kofn.nn.PruningSchedule": "numbers",
    "kofn.nn.Pruner": "made by prune",
    "kofn.nn.SAEOutput": "a tuple of what forward returns",
    "kofn.nn.DispatchPlan": "made by dispatch_plan",
    "kofn.nn.KeyValueCache": "by its method",
    "kofn.nn.check_semi_structured": "needs a GPU",
    "kofn.nn.sparse_flex_attention": "compiles, for a minute",
    "kofn.onnx": "no tensors",
    "kofn.integrations.saelens": "needs safetensors",
    "kofn.integrations.torch_geometric": "needs PyTorch Geometric",
    "kofn.integrations.transformers": "needs transformers",
    "kofn.integrations.dictionary_learning": "files: test_integrations.py",
}
"""Names, or what they begin with, and why they are not called."""


def names() -> list[str]:
    """Everything public, without the arguments."""
    lines = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    found = (line.partition("(")[0].partition(":")[0] for line in lines if line)
    return [name for name in found if name not in UNCALLED and not _left_out(name)]


def _left_out(name: str) -> bool:
    return any(name.startswith(f"{each}.") for each in UNCALLED)


def _found(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def _by_arguments(name: str) -> Callable[[Tensor], Any]:
    function, own = _found(name), OTHER.get(name, {})
    arguments: dict[str, Any] = {}
    for at, (key, each) in enumerate(inspect.signature(function).parameters.items()):
        if key in own:
            arguments[key] = own[key]
        elif at and (each.default is each.empty or key in ALWAYS):
            arguments[key] = GIVEN[key]

    def call(x: Tensor) -> Any:
        made = {key: each() if each is rng else each for key, each in arguments.items()}
        first = GIVEN["weights"] if "weights" in name else x
        return function(first, **made)

    return call


DISTRIBUTIONS: dict[str, Callable[[Tensor], Any]] = {
    "KSubset": lambda x: kofn.KSubset(x, 2),
    "PlackettLuce": lambda x: kofn.PlackettLuce(x),
    "Categorical": lambda x: kofn.Categorical(x),
    "Bernoulli": lambda x: kofn.Bernoulli(x),
    "Normal": lambda x: kofn.Normal(x, X.exp()),
    "RelaxedOneHot": lambda x: kofn.RelaxedOneHot(x, 0.7),
}
SAMPLES = {
    name: make(X).sample(rng=rng())
    for name, make in DISTRIBUTIONS.items()
    if name != "PlackettLuce"
}
SAMPLES["PlackettLuce"] = INDICES
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "choose": (X,),
    "covariance_vector_product": (X,),
    "relax": (X, 0.7),
}
"""Of methods of distributions that take something else than a sample or another distribution."""


def _of_distribution(kind: str, method: str) -> Callable[[Tensor], Any]:
    make, sample = DISTRIBUTIONS[kind], SAMPLES[kind]

    def call(x: Tensor) -> Any:
        one = make(x)
        found = getattr(one, method)
        if not callable(found):
            return found
        if method == "kl":
            return found(make(X.flip(-1)))
        if method in ("log_prob", "perturb_given", "conditioned"):
            arguments: tuple[Any, ...] = (sample,)
        elif method == "from_marginals":
            arguments = (GIVEN["weights"],)
        elif kind == "PlackettLuce" and method.endswith("sample"):
            arguments = (2, 0.7)[: 1 + (method == "relaxed_sample")]
        else:
            wider = ((2, *one.batch_shape),)
            arguments = wider if method == "expand" else ARGUMENTS.get(method, ())
        drawn = {"rng": rng()} if "rng" in inspect.signature(found).parameters else {}
        answer = found(*arguments, **drawn)
        return answer.batch_shape if method in ("to_torch", "expand") else answer

    return call


def _router(x: Tensor, method: str = "forward", **options: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        router = nn.TopKRouter(
            4, 6, 2, balance="quantile", temperature=schedules.linear(1, 0.1, 7), **OWN, **options
        )
    given = x @ MATRIX
    routed = router(given)
    nn.step_routers(router)
    if method == "statistics":
        return router.statistics(), router.balance.state_dict()
    if method == "forward":
        return router(given), routed, router.state_dict()
    arguments: dict[str, tuple[Any, ...]] = {
        "add": (torch.arange(6),),
        "choose": (x,),
        "gates_of": (x, *router.choose(x)),
    }
    return getattr(router, method)(*arguments.get(method, ()))


def _attention(x: Tensor, forward: bool = True) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.SparseAttention(4, 2, learned=("alpha",), batch_first=True, **OWN)
    given = (x @ MATRIX)[None]
    if not forward:
        net.reset_parameters()
        return net.state_dict()
    return net(given, given, given, is_causal=True, attn_mask=None)


def _sae(x: Tensor, method: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sae = nn.TopKSAE(4, 6, 2, selection="batch", temperature=schedules.linear(1, 0.1, 7), **OWN)
    given = x @ MATRIX
    sae(given)
    sae.step()
    answer = sae(given)
    if method == "calibrate":
        sae.calibrate(given.detach())
        return sae.eval()(given)
    if method == "auxk_loss":
        return nn.auxk_loss(sae, given, answer)
    arguments = {"decode": (answer.code,), "encode": (given,)}
    if method == "forward":
        return answer, sae.state_dict()
    return getattr(sae, method)(*arguments.get(method, ()))


def _pruned(x: Tensor, **options: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(6, 8, **OWN), torch.nn.Linear(8, 4, **OWN))
    pruner = nn.prune(net, 0.5, schedule=nn.PruningSchedule(4), **options)
    found = []
    for _ in range(3):
        found.append(net(x.detach()).detach())
        pruner.step()
    masks = pruner.masks()
    pruner.finalize()
    return found, masks, net(x)


def _until_hard(x: Tensor) -> Any:
    schedule = schedules.until_hard(1.0, 0.1, 7)
    return schedule(STEP), schedule.next(STEP, kofn.metrics.hard_gap(GIVEN["weights"], 2))


def _estimated(name: str) -> Callable[[Tensor], Any]:
    function = getattr(estimators, name)
    through = "f" not in inspect.signature(function).parameters

    def call(x: Tensor) -> Any:
        choice = kofn.Categorical(x)
        drawn = {} if name == "exact" else {"rng": rng()}
        return function(choice, **drawn) if through else function(choice, cost, **drawn)

    return call


def _running_mean(x: Tensor) -> Any:
    mean = estimators.RunningMean()
    mean.update(X)
    again = estimators.RunningMean()
    again.load_state_dict(mean.state_dict())
    return again.mean


def _study(x: Tensor) -> Any:
    found = estimators.study("straight_through", cost, X[0], rng=rng(), draws=50)
    return found.bias, found.relative, found.enumerated, found.unbiased


def _selected(x: Tensor) -> Any:
    labels = (TABLE[:, 1] > 0).astype(int)
    budgeted = dict(costs=np.ones(6), budget=2.0)
    found = [
        SoftTopKSelector(**how, steps=4, ensemble=2, random_state=0).fit(TABLE, labels)
        for how in (dict(k=2), budgeted)
    ]
    return [each.scores_ for each in found]


def _biased(x: Tensor) -> Any:
    net = nn.TopKRouter(4, 6, 2, balance="quantile", score_function="sigmoid", **OWN)
    expert_bias.load_expert_bias(net, {"expert_bias_E": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]})
    return net.balance.bias, expert_bias.export_expert_bias(net, "deepseek")


def _cache(x: Tensor) -> Any:
    cache = nn.KeyValueCache()
    cache.extended(x[None, None], x[None, None])
    return cache.extended(x[None, None], x[None, None])


def _streamed(name: str) -> Callable[[Tensor], Any]:
    function = getattr(streaming, name)
    return lambda x: function([X[0].clone(), X[1].clone()], 0.3 if name == "quantile" else 2)


def _with_link(x: Tensor) -> Any:
    own = kofn.Link(
        lambda z: torch.arctan(z) / torch.pi + 0.5, lambda z: 1 / (1 + z * z) / torch.pi
    )
    return kofn.soft_topk(x, 2, link=own), kofn.soft_topk(x, 2, link=kofn.links.entmax(1.3))


def _by_link(name: str) -> Callable[[Tensor], Any]:
    return lambda x: kofn.soft_topk_sum(x, 2, link=getattr(kofn.links, name))


QKV = X.reshape(1, 1, 3, 6)
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "kofn.RelaxedOneHot": DISTRIBUTIONS["RelaxedOneHot"],
    "kofn.KSubset": lambda x: kofn.KSubset(x, 2).marginals(),
    "kofn.normal_rsample": lambda x: kofn.normal_rsample(x, X.exp(), rng()),
    "kofn.links.Link": _with_link,
    "kofn.links.entmax": _with_link,
    "kofn.distributed.KSubset": lambda x: kofn.distributed.KSubset(x, 2).marginals(),
    "kofn.temperature_for": lambda x: kofn.temperature_for(x, 2, support=2.5),
    "kofn.metrics.temperature_for": lambda x: kofn.temperature_for(x, 2, gap=0.1, per_row=True),
    "kofn.metrics.order_violations": lambda x: kofn.metrics.order_violations(x, GIVEN["weights"]),
    "kofn.estimators.surrogate": lambda x: estimators.surrogate(cost(x), x.sum(-1)),
    "kofn.estimators.study": _study,
    "kofn.estimators.RunningMean": _running_mean,
    "kofn.estimators.RunningMean.load_state_dict": _running_mean,
    "kofn.estimators.RunningMean.mean": _running_mean,
    "kofn.estimators.RunningMean.state_dict": _running_mean,
    "kofn.estimators.RunningMean.update": _running_mean,
    "kofn.schedules.constant": lambda x: schedules.constant(0.3)(STEP),
    "kofn.schedules.cosine": lambda x: schedules.cosine(1.0, 0.1, 7)(STEP),
    "kofn.schedules.exponential": lambda x: schedules.exponential(1.0, 0.1, 7)(STEP),
    "kofn.schedules.linear": lambda x: schedules.linear(1.0, 0.1, 7)(STEP),
    "kofn.schedules.until_hard": _until_hard,
    "kofn.nn.TopKRouter": lambda x: _router(x, score_function="sigmoid"),
    "kofn.nn.step_routers": lambda x: _router(x, selection="budget"),
    "kofn.nn.load_balancing_loss": lambda x: nn.load_balancing_loss(x, INDICES),
    "kofn.nn.router_z_loss": lambda x: nn.router_z_loss(x),
    "kofn.nn.dispatch_plan": lambda x: nn.dispatch_plan(INDICES, 6, capacity=1),
    "kofn.nn.SparseAttention": _attention,
    "kofn.nn.SparseAttention.forward": _attention,
    "kofn.nn.SparseAttention.reset_parameters": lambda x: _attention(x, forward=False),
    "kofn.nn.sparse_attention": lambda x: nn.sparse_attention(
        x.reshape(1, 1, 3, 6), QKV, QKV, is_causal=True
    ),
    "kofn.nn.KeyValueCache.extended": _cache,
    "kofn.nn.prune": _pruned,
    "kofn.nn.TopKSAE": lambda x: _sae(x, "forward"),
    "kofn.nn.auxk_loss": lambda x: _sae(x, "auxk_loss"),
    "kofn.feature_selection.SoftTopKSelector": _selected,
    "kofn.feature_selection.SoftTopKSelector.fit": _selected,
    "kofn.integrations.expert_bias.load_expert_bias": _biased,
    "kofn.integrations.expert_bias.export_expert_bias": _biased,
}


def _call_of(name: str) -> Callable[[Tensor], Any]:
    """The call of a name that `CALLS` does not have."""
    head, _, last = name.rpartition(".")
    kind = head.removeprefix("kofn.")
    if kind in DISTRIBUTIONS:
        return _of_distribution(kind, last)
    if head == "kofn" and last in DISTRIBUTIONS:
        return lambda x: DISTRIBUTIONS[last](x).log_prob(SAMPLES[last])
    if head == "kofn.nn.TopKRouter":
        return lambda x: _router(x, last)
    if head == "kofn.nn.TopKSAE":
        return lambda x: _sae(x, last)
    if head == "kofn.links":
        return _by_link(last)
    if head == "kofn.estimators":
        return _estimated(last)
    if head == "kofn.streaming":
        return _streamed(last)
    if head in [f"kofn{room}" for room in FUNCTIONS]:
        return _by_arguments(name)
    raise LookupError(f"{name} has no call in tests/calls_of_torch.py")


CALLS |= {name: _call_of(name) for name in names() if name not in CALLS}


def tensors(found: Any) -> list[Any]:
    """The tensors and numbers of an answer."""
    if isinstance(found, (tuple, list)):
        return [each for part in found for each in tensors(part)]
    if isinstance(found, dict):
        return tensors(list(found.values()))
    return [found]
