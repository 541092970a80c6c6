"""The public functions as a GPU runs them, each with arguments to call it with.

Tests compare them with float64 on the CPU, `counted.py` counts their launches, and `make gpu` times
them. tests/gpu/test_table.py holds the table to `__all__`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import kofn
from kofn import classic, losses, metrics, nn, projections

Call = tuple[Callable[..., Tensor], tuple[Tensor, ...]]
"""A function of tensors that may be learned, and these."""


@dataclass
class Draw:
    """Arguments: the same numbers for every device and dtype, rounded to `rounded` first."""

    device: Any = "cpu"
    dtype: torch.dtype = torch.float32
    rows: int = 4096
    n: int = 64
    rounded: torch.dtype | None = None
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    kept: torch.Generator | None = None
    """What samplers draw from; without it each call has a generator of the same seed."""

    def place(self, values: Tensor) -> Tensor:
        """Return the numbers on the device; what is no float keeps its type."""
        if values.is_floating_point():
            values = values.to(self.rounded or self.dtype).to(self.dtype)
        return values.to(self.device)

    def normal(self, *shape: int) -> Tensor:
        return self.place(torch.randn(shape, generator=self.generator, dtype=torch.float64))

    def scores(self) -> Tensor:
        return self.normal(self.rows, self.n)

    def positive(self, *shape: int) -> Tensor:
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return self.place(0.25 + drawn)

    def each(self, value: float, dtype: torch.dtype | None = None) -> Tensor:
        """Return a number for each row, in half precision float32."""
        dtype = dtype or (torch.float32 if self.dtype.itemsize < 4 else self.dtype)
        return torch.full((self.rows,), value, dtype=dtype).to(self.device)

    def labels(self, n: int | None = None) -> Tensor:
        return self.place(torch.randint(n or self.n, (self.rows,), generator=self.generator))

    def flags(self, k: int) -> Tensor:
        """Return booleans, k of each row True."""
        drawn = torch.rand((self.rows, self.n), generator=self.generator)
        chosen = torch.zeros(drawn.shape, dtype=torch.bool)
        return self.place(chosen.scatter(-1, drawn.topk(k).indices, True))

    def ptr(self) -> Tensor:
        """Return where segments of uneven lengths begin and end, in as many entries as scores."""
        apart = torch.randint(self.n // 2 + 1, (self.rows // 2,), generator=self.generator)
        lengths = torch.cat((self.n - apart, self.n + apart))
        ends = lengths.cumsum(0)
        return self.place(torch.cat((torch.zeros(1, dtype=torch.int64), ends)))

    def generator_there(self) -> torch.Generator:
        return self.kept or torch.Generator(device=self.device).manual_seed(1)


class Function(NamedTuple):
    """A public function with arguments."""

    name: str
    make: Callable[[Draw], Call]
    most: int = 0
    """Launches, forward or backward, that are enough; 0 where nobody has said so."""
    waits: str = ""
    """Why it waits for numbers from the device."""
    random: bool = False
    """Answers are drawn: there is no truth for them but in law."""
    learns: bool = True
    halves: bool = True
    """Half precision is taken."""
    exact: bool = False
    """The answer is the same on every device, to the bit."""


def k_of(draw: Draw) -> int:
    return max(1, draw.n // 8)


def _of_scores(function: Callable[..., Any]) -> Callable[[Draw], Call]:
    return lambda draw: (function, (draw.scores(),))


def _with_k(function: Callable[..., Any], **options: Any) -> Callable[[Draw], Call]:
    return lambda draw: (partial(function, k=k_of(draw), **options), (draw.scores(),))


def _to_labels(function: Callable[..., Any], **options: Any) -> Callable[[Draw], Call]:
    return lambda draw: (partial(function, target=draw.labels(), **options), (draw.scores(),))


def _to_flags(function: Callable[..., Any], **options: Any) -> Callable[[Draw], Call]:
    return lambda draw: (
        partial(function, target=draw.flags(k_of(draw)), **options),
        (draw.scores(),),
    )


def _masked(draw: Draw) -> Call:
    mask = ~draw.flags(k_of(draw))
    return partial(kofn.soft_topk, k=k_of(draw), mask=mask), (draw.scores(),)


def _per_row(draw: Draw) -> Call:
    def function(x: Tensor, k: Tensor, t: Tensor) -> Tensor:
        return kofn.soft_topk(x, k, temperature=t)

    return function, (draw.scores(), draw.each(k_of(draw)), draw.each(0.7))


def _costs(function: Callable[..., Any], **options: Any) -> Callable[[Draw], Call]:
    def make(draw: Draw) -> Call:
        costs = draw.positive(draw.n)
        budget = float(draw.n) / 6
        return partial(function, budget=budget, **options), (draw.scores(), costs)

    return make


def _costs_fixed(function: Callable[..., Any], **options: Any) -> Callable[[Draw], Call]:
    def make(draw: Draw) -> Call:
        costs = draw.positive(draw.n)
        return (lambda x: function(x, costs, float(draw.n) / 6, **options)), (draw.scores(),)

    return make


def _segments(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    def make(draw: Draw) -> Call:
        given = dict(ptr=draw.ptr(), num_segments=2 * (draw.rows // 2), **options)
        total = 2 * (draw.rows // 2) * draw.n
        return (lambda x: function(x[:total], *arguments, **given)), (draw.scores().reshape(-1),)

    return make


def _segment_loss(draw: Draw) -> Call:
    total = 2 * (draw.rows // 2) * draw.n
    target = draw.flags(k_of(draw)).reshape(-1)[:total]
    given = dict(target=target, ptr=draw.ptr(), num_segments=2 * (draw.rows // 2))
    return (lambda x: losses.segment_topk_loss(x[:total], **given)), (draw.scores().reshape(-1),)


def _cosines(function: Callable[..., Any]) -> Callable[[Draw], Call]:
    def make(draw: Draw) -> Call:
        target = draw.labels()
        return (lambda x: function(x, target)[0]), (torch.tanh(draw.scores() / 2),)

    return make


def _weights_of(function: Callable[..., Any], *more: Any) -> Callable[[Draw], Call]:
    """A metric of weights; those of softmax, which every entry shares."""

    def make(draw: Draw) -> Call:
        p = torch.softmax(draw.scores(), -1)
        return (lambda p: function(p, *more)), (p,)

    return make


def _k_subset(method: str) -> Callable[[Draw], Call]:
    def make(draw: Draw) -> Call:
        k, chosen, v = k_of(draw), draw.flags(k_of(draw)), draw.scores()

        def function(x: Tensor) -> Tensor:
            subset = kofn.KSubset(x, k)
            if method == "log_prob":
                return subset.log_prob(chosen)
            if method == "kl":
                return subset.kl(kofn.KSubset(v, k))
            if method == "covariance_vector_product":
                return subset.covariance_vector_product(v)
            if method == "sample":
                return subset.sample(rng=draw.generator_there())
            return getattr(subset, method)()

        return function, (draw.scores(),)

    return make


def _drawn(function: Callable[[Tensor, torch.Generator], Tensor]) -> Callable[[Draw], Call]:
    return lambda draw: ((lambda x: function(x, draw.generator_there())), (draw.scores(),))


def _categorical(method: str) -> Callable[[Draw], Call]:
    return lambda draw: ((lambda x: getattr(kofn.Categorical(x), method)()), (draw.scores(),))


def filled(module: Any, draw: Draw) -> Any:
    """Set all parameters to numbers that the generator of `draw` gives."""
    with torch.no_grad():
        for parameter in module.parameters():
            shape = parameter.shape
            drawn = torch.randn(shape, generator=draw.generator, dtype=torch.float64)
            parameter.copy_(draw.place(drawn / max(1, shape[-1]) ** 0.5))
    return module


WIDE = 32  # of hidden states, few: their product with the weights is PyTorch's


def router_of(draw: Draw, **options: Any) -> Any:
    dtype = draw.dtype
    made = nn.TopKRouter(WIDE, draw.n, k_of(draw), device=draw.device, dtype=dtype, **options)
    return filled(made, draw)


def _router(**options: Any) -> Callable[[Draw], Call]:
    def make(draw: Draw) -> Call:
        router, hidden = router_of(draw, **options), 2 * draw.normal(draw.rows, WIDE)
        return (lambda h: router(h)[1]), (hidden,)

    return make


def _sae(**options: Any) -> Callable[[Draw], Call]:
    def make(draw: Draw) -> Call:
        given = dict(device=draw.device, dtype=draw.dtype, **options)
        sae = filled(nn.TopKSAE(WIDE, draw.n, k_of(draw), **given), draw)
        return (lambda x: sae(x).reconstruction), (draw.normal(draw.rows, WIDE),)

    return make


def _attention(**options: Any) -> Callable[[Draw], Call]:
    def make(draw: Draw) -> Call:
        shape = (1, max(1, draw.rows // draw.n), draw.n, 16)
        query, key, value = (draw.normal(*shape) for _ in range(3))

        def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return nn.sparse_attention(query, key, value, is_causal=True, **options)

        return function, (query, key, value)

    return make


def _plan(draw: Draw) -> Call:
    indices = draw.place(torch.randint(draw.n, (draw.rows, 2), generator=draw.generator))
    hidden, weights = draw.normal(draw.rows, WIDE), draw.positive(draw.rows, 2)

    def function(hidden: Tensor, weights: Tensor) -> Tensor:
        plan = nn.dispatch_plan(indices, draw.n)
        return plan.combine(plan.gather(hidden), weights)

    return function, (hidden, weights)


def _balancing(draw: Draw) -> Call:
    indices = draw.place(torch.randint(draw.n, (draw.rows, 2), generator=draw.generator))
    return (lambda x: nn.load_balancing_loss(x, indices)), (draw.scores(),)


def _assignment(function: Callable[..., Any], **options: Any) -> Callable[[Draw], Call]:
    """Many matrices of 16 rows, or a few if the scores are few."""

    def make(draw: Draw) -> Call:
        batch = max(1, draw.rows // 16)
        x = draw.normal(batch, 16, draw.n)
        return (lambda x: function(x, max(1, draw.n // 8), **options)), (x,)

    return make


def _box(draw: Draw) -> Call:
    x = draw.scores()
    lower, upper = torch.zeros_like(x[0]), torch.ones_like(x[0])
    w = draw.positive(draw.n)
    c = float(draw.n) / 8
    return (lambda x: projections.projection_box_section(x, lower, upper, w, c)), (x,)


def _alpha(draw: Draw) -> Call:
    return kofn.entmax, (draw.scores(), draw.each(1.7))


def _temperature(draw: Draw) -> Call:
    support = float(2 * k_of(draw))
    return partial(kofn.temperature_for, k=k_of(draw), support=support), (draw.scores(),)


def _softmax_of_torch(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


SEARCH = "an array-code search reads whether rows are open, once per few passes"


def _table() -> Iterator[Function]:
    yield Function("torch.softmax", _of_scores(_softmax_of_torch))
    # Maps.
    yield Function("soft_topk", _with_k(kofn.soft_topk), 2)
    for link in ("laplace", "normal", "exponential", "linear", "entmax"):
        k = {"k": 1} if link == "exponential" else {}
        make = partial(kofn.soft_topk, link=link, **k)
        yield Function(f"soft_topk, {link}", _of_scores(make) if k else _with_k(make), 2)
    yield Function("soft_topk, mask", _masked)
    yield Function("soft_topk, k and T learned", _per_row, 2)
    yield Function("soft_topk, hard", _with_k(kofn.soft_topk, hard=True), 6)
    yield Function("softmax", _of_scores(kofn.softmax), 2)
    yield Function("sparsemax", _of_scores(kofn.sparsemax), 2)
    yield Function("entmax", _of_scores(kofn.entmax), 2)
    yield Function("entmax, alpha learned", _alpha, waits=SEARCH)
    yield Function("soft_topk_threshold", _with_k(kofn.soft_topk_threshold), 30)
    yield Function("soft_topk_sum", _with_k(kofn.soft_topk_sum), 6)
    yield Function("log_soft_topk", _with_k(kofn.log_soft_topk), 6)
    yield Function("log_entmax", _of_scores(kofn.log_entmax), 6)
    yield Function("sparse_softmax", _with_k(kofn.sparse_softmax), 30)
    yield Function("sparse_softmax, p", _of_scores(partial(kofn.sparse_softmax, p=0.9)), 30)
    yield Function("taylor_softmax", _of_scores(kofn.taylor_softmax), 2)
    yield Function("perturbed_argmax", _of_scores(kofn.perturbed_argmax), halves=False)
    # Choices.
    yield Function("topk_gates", _gates, 6)
    yield Function("hard_topk", _with_k(kofn.hard_topk), 6, learns=False, exact=True)
    yield Function("topk", _topk, 30, exact=True)
    yield Function("topk, mask", _topk_masked, 30, exact=True)
    yield Function("quantile", _of_scores(partial(kofn.quantile, q=0.3, dim=-1)), 20)
    soft = partial(kofn.quantile, q=0.3, dim=-1, temperature=0.1)
    yield Function("quantile, temperature", _of_scores(soft), 20)
    yield Function("soft_knapsack", _costs(kofn.soft_knapsack), 12)
    yield Function("soft_knapsack, costs fixed", _costs_fixed(kofn.soft_knapsack), 12)
    hard = _costs_fixed(kofn.soft_knapsack, hard=True)
    yield Function("soft_knapsack, hard", hard, 12)
    yield Function("soft_knapsack_threshold", _costs(kofn.soft_knapsack_threshold), 12)
    yield Function("soft_knapsack_value", _costs(kofn.soft_knapsack_value), 12)
    yield Function("soft_assignment", _assignment(kofn.soft_assignment), 25, SEARCH)
    hard = _assignment(kofn.soft_assignment, hard=True)
    yield Function("soft_assignment, hard", hard, 25, SEARCH, halves=False)
    yield Function("soft_assignment_prices", _prices, 25, SEARCH)
    yield from _of_segments()
    yield from _of_losses()
    yield from _others()
    yield from _of_distributions()
    yield from _modules()


def _gates(draw: Draw) -> Call:
    return (lambda x: kofn.topk_gates(x, k_of(draw))[0]), (draw.scores(),)


def _topk(draw: Draw) -> Call:
    return (lambda x: kofn.topk(x, k_of(draw))[0]), (draw.scores(),)


def _topk_masked(draw: Draw) -> Call:
    mask = ~draw.flags(k_of(draw))
    return (lambda x: kofn.topk(x, k_of(draw), mask=mask)[0]), (draw.scores(),)


def _prices(draw: Draw) -> Call:
    function, leaves = _assignment(kofn.soft_assignment_prices)(draw)
    return (lambda x: function(x)[0]), leaves


def _of_segments() -> Iterator[Function]:
    for name, more in (
        ("segment_soft_topk", (3,)),
        ("segment_soft_topk_threshold", (3,)),
        ("segment_soft_topk_sum", (3,)),
        ("segment_softmax", ()),
        ("segment_sparsemax", ()),
        ("segment_entmax", ()),
    ):
        waits = "" if name == "segment_softmax" else SEARCH
        yield Function(name, _segments(getattr(kofn, name), *more), 0, waits)
    function = partial(kofn.segment_soft_topk, hard=True)
    yield Function("segment_soft_topk, hard", _segments(function, 3), 0, SEARCH)
    yield Function(
        "segment_hard_topk", _segments(kofn.segment_hard_topk, 3), learns=False, exact=True
    )
    yield Function("segment_topk", _segments(_segment_topk, 3), exact=True)
    yield Function("segment_quantile", _segments(kofn.segment_quantile, 0.3))
    yield Function("segment_topk_loss", _segment_loss, 0, SEARCH)


def _segment_topk(x: Tensor, k: int, **options: Any) -> Tensor:
    return kofn.segment_topk(x, k, **options)[0]


def _of_losses() -> Iterator[Function]:
    for name in ("softmax_loss", "sparsemax_loss", "entmax_loss", "accuracy_loss"):
        yield Function(name, _to_labels(getattr(losses, name)), 6)
    yield Function("epsilon_cross_entropy", _to_labels(losses.epsilon_cross_entropy), 6)
    yield Function("topk_cross_entropy", _to_labels(losses.topk_cross_entropy, k=5), 6)
    yield Function("sparse_softmax_loss", _to_labels(losses.sparse_softmax_loss, k=5), 6)
    perturbed = _to_labels(losses.perturbed_accuracy_loss)
    yield Function("perturbed_accuracy_loss", perturbed, halves=False)
    yield Function("topk_loss", _to_flags(losses.topk_loss), 6)
    fenchel = _to_flags(losses.fenchel_young_loss, link="logistic")
    yield Function("fenchel_young_loss", fenchel, 6)
    yield Function("am_softmax", _cosines(losses.am_softmax), 6)
    yield Function("arcface", _cosines(losses.arcface), 6)


def _others() -> Iterator[Function]:
    yield Function("projection_simplex", _of_scores(projections.projection_simplex), 30)
    yield Function("projection_l1_ball", _of_scores(projections.projection_l1_ball), 30)
    for name in ("capped_simplex", "sparse_simplex", "sparse_vector"):
        function = getattr(projections, f"projection_{name}")
        yield Function(f"projection_{name}", _with_k(function), 60)
    yield Function("projection_box_section", _box)
    for name in ("effective_support", "entropy", "sparsity", "support_size"):
        yield Function(f"metrics.{name}", _weights_of(getattr(metrics, name)), learns=False)
    yield Function("metrics.hard_gap", _weights_of(metrics.hard_gap, 1), learns=False)
    for name in ("renyi_entropy", "tsallis_entropy"):
        yield Function(f"metrics.{name}", _weights_of(getattr(metrics, name), 1.5), learns=False)
    violations = lambda p: metrics.order_violations(-p, p)  # noqa: E731
    yield Function("metrics.order_violations", _weights_of(violations), learns=False)
    yield Function("metrics.jacobian_norm", _with_k(metrics.jacobian_norm), learns=False)
    yield Function("temperature_for", _temperature, learns=False)
    yield Function("classic.iterative_soft_topk", _classic(classic.iterative_soft_topk))
    yield Function("classic.ones_and_softmax", _classic(classic.ones_and_softmax))
    yield Function("classic.weighted_soft_topk", _weighted)


def _classic(function: Callable[..., Any]) -> Callable[[Draw], Call]:
    return lambda draw: ((lambda x: function(x, k_of(draw))), (draw.scores(),))


def _weighted(draw: Draw) -> Call:
    return (lambda x: classic.weighted_soft_topk(x, k_of(draw))), (draw.scores(),)


def _of_distributions() -> Iterator[Function]:
    for method in ("marginals", "entropy", "log_partition", "log_prob", "kl"):
        yield Function(f"KSubset.{method}", _k_subset(method), halves=False)
    product = _k_subset("covariance_vector_product")
    yield Function("KSubset.covariance_vector_product", product, halves=False)
    mode = _k_subset("mode")
    yield Function("KSubset.mode", mode, learns=False, halves=False, exact=True)
    sample = _k_subset("sample")
    yield Function("KSubset.sample", sample, random=True, learns=False, halves=False)
    for method in ("entropy", "marginals"):
        yield Function(f"Categorical.{method}", _categorical(method), halves=False)
    for name, function in (
        ("Categorical.sample", lambda x, rng: kofn.Categorical(x).sample(rng=rng)),
        ("Bernoulli.sample", lambda x, rng: kofn.Bernoulli(x).sample(rng=rng)),
        ("PlackettLuce.sample", lambda x, rng: kofn.PlackettLuce(x).sample(2, rng=rng)),
        ("gumbel_max", kofn.gumbel_max),
    ):
        options = dict(learns=False, halves=False)
        yield Function(name, _drawn(function), random=True, **options)
    for name, function in (
        ("gumbel_softmax", lambda x, rng: kofn.gumbel_softmax(x, rng=rng)),
        ("gumbel_softmax, hard", lambda x, rng: kofn.gumbel_softmax(x, hard=True, rng=rng)),
        ("normal_rsample", lambda x, rng: kofn.normal_rsample(x, torch.ones_like(x), rng=rng)),
        ("RelaxedOneHot.rsample", lambda x, rng: kofn.RelaxedOneHot(x, 1.0).rsample(rng=rng)),
    ):
        yield Function(name, _drawn(function), random=True, halves=False)


def _modules() -> Iterator[Function]:
    yield Function("TopKRouter", _router(), 20)
    yield Function("TopKRouter, balance", _router(balance=1e-3), 20)
    yield Function("TopKRouter, balance by quantiles", _router(balance="quantile"))
    yield Function("TopKRouter, sigmoid", _router(score_function="sigmoid", balance=1e-3), 20)
    yield Function("TopKRouter, soft", _router(selection="soft"), 20)
    yield Function("TopKRouter, expert choice", _router(selection="expert_choice"))
    yield Function("TopKRouter, budget", _router(selection="budget"))
    yield Function("TopKRouter, assignment", _router(selection="assignment"), 0, SEARCH)
    yield Function("dispatch_plan", _plan)
    yield Function("load_balancing_loss", _balancing)
    yield Function("router_z_loss", _of_scores(nn.router_z_loss))
    yield Function("TopKSAE", _sae())
    yield Function("TopKSAE, signed", _sae(signed=True))
    for weights in ("entmax", "sparsemax", "soft_topk"):
        yield Function(f"sparse_attention, {weights}", _attention(weights=weights))


FUNCTIONS = tuple(_table())

ELSEWHERE = {
    "step_routers": "test_modules.py",
    **dict.fromkeys(("record_routing", "replay_routing", "RoutingRecord"), "TopKRouter"),
    "DispatchPlan": "dispatch_plan",
    "SoftTopK": "soft_topk",
    "segment_sparse_softmax": "sparse_softmax, by array code",
    "segment_sparse_softmax_loss": "sparse_softmax_loss, by array code",
    "sparse_softmax_entropy": "sparse_softmax",
    "topk_kl": "array code",
    "SparseAttention": "sparse_attention",
    "sparse_flex_attention": "test_modules.py",
    "KeyValueCache": "a container of tensors",
    "prune": "docs/nn_pruning.md: it reads a few numbers per step",
    "Pruner": "prune",
    "PruningSchedule": "no tensors",
    "check_semi_structured": "reads the weights, once",
    "SAEOutput": "TopKSAE",
    "auxk_loss": "test_modules.py",
    "Normal": "normal_rsample",
    "projections": "its functions",
    "estimators": "samples of the distributions",
    "links": "soft_topk",
    "Link": "array code: the search of a link of one's own",
    "losses": "its functions",
    "schedules": "no tensors",
    "metrics": "its functions",
    "classic": "its functions",
}
"""Public names that the table leaves out, and where they are, or why."""
