"""Faults, each a line or two of src/kofn as someone might write them, and the tests that see them.

An old text stands once in its file; it holds no annotation and no name that may well change. Of the
test files, at most three, the quick ones come first.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A change of one place in the sources that some test of `make test` has to notice."""

    name: str
    file: str  # under src/kofn
    old: str
    new: str
    tests: tuple[str, ...]  # files of tests/


FAULTS = (
    # Derivatives.
    Fault(
        "the threshold moves the logarithms' cotangents the wrong way",
        "formulas/pullbacks.py",
        "pulled = pulled - only_if(hard, shares, share)",
        "pulled = pulled + only_if(hard, shares, share)",
        ("test_formulas_temperature.py",),
    ),
    Fault(
        "the cotangent of k of a threshold has the wrong sign",
        "formulas/pullbacks.py",
        "share * each[..., None], -temperature * each",
        "share * each[..., None], temperature * each",
        ("test_operations_threshold.py",),
    ),
    Fault(
        "the cotangent of the temperature has the wrong sign",
        "formulas/pullbacks.py",
        "return in_x, -(lever + rest)",
        "return in_x, lever + rest",
        ("test_formulas_temperature.py", "test_losses_family.py"),
    ),
    Fault(
        "the cotangent of alpha of a loss has the wrong sign",
        "adapters/torch/each_alpha.py",
        "in_alpha: cotangent * in_alpha",
        "in_alpha: -cotangent * in_alpha",
        ("test_adapters_each_alpha.py",),
    ),
    Fault(
        "second derivatives take the derivatives of the threshold for constants",
        "formulas/root.py",
        "for step in range(2):",
        "for step in range(1):",
        ("test_formulas_gradients.py",),
    ),
    Fault(
        "a compiled function has k's gradient for the temperature's",
        "adapters/torch/operators.py",
        "{n: parts[i] for i, n in enumerate(names)",
        "{n: parts[0] for i, n in enumerate(names)",
        ("test_adapters_torch_fused.py", "test_package_compiled.py"),
    ),
    Fault(
        "autograd keeps the scores where it need not",
        "adapters/torch/eager.py",
        "if not operation.keeps_scores:",
        "if operation.keeps_scores is None:",
        ("test_operations_losses.py", "test_adapters_torch_eager.py", "test_adapters.py"),
    ),
    Fault(
        "without kernels' pivot, rounding reaches the gradient in T of rows of over 128 entries",
        "kernels/cpu/rows/backward.py",
        "pivot, per_t, mean = lanes.pivot[r], lanes.per_t[r], lanes.mean[r]",
        "pivot, per_t, mean = lanes.hi[r], lanes.per_t[r], lanes.mean[r]",
        ("test_formulas_temperature.py", "test_kernels_temperature.py"),
    ),
    # NaN, infinities, masks and the ends of k.
    Fault(
        "array code loses a NaN outside of a bounded support",
        "formulas/answers.py",
        "chosen = nan_where(chosen, p.over.expand(p.has_nan))",
        "chosen = chosen + 0.0",
        ("test_formulas_nan.py", "test_maps_edges.py", "test_kernels.py"),
    ),
    Fault(
        "JAX loses a NaN in a maximum",
        "arrays/operations.py",
        "return extreme(x, -math.inf)",
        "return namespace(x).max(x, axis=-1)",
        ("test_formulas_nan.py",),
    ),
    Fault(
        "a kernel loses a NaN",
        "kernels/cpu/rows/forward.py",
        "others = theta if theta != theta else (0.0 if theta > 0 else 1.0)",
        "others = 0.0 if theta > 0 else 1.0",
        ("test_formulas_nan.py", "test_kernels.py"),
    ),
    Fault(
        "scores of +inf do not come off k",
        "rows/settled.py",
        "return k - tops, weight",
        "return k, weight",
        ("test_kernels.py",),
    ),
    Fault(
        "k = 0 has no threshold",
        "solver/threshold.py",
        "closed = xp.where(p.k <= 0, math.inf, every)",
        "closed = xp.where(p.k < 0, math.inf, every)",
        ("test_kernels.py",),
    ),
    Fault(
        "a mask beside scores of half precision is ignored",
        "rows/given.py",
        "if mask is not None:\n        x = form.xp.where(last_mask",
        "if mask is not None and not half:\n        x = form.xp.where(last_mask",
        ("test_maps_masks.py",),
    ),
    Fault(
        "finfo.min plus a score does not mask in float16",
        "arrays/kinds.py",
        "-greatest / 2 for name",
        "-greatest / (1 if name == 'float16' else 2) for name",
        ("test_maps_masks.py",),
    ),
    Fault(
        "a mask of three dimensions is turned the wrong way",
        "arrays/form.py",
        "return whole_rows(values if self.dim == -1 else move_axis(values, self.dim, -1))",
        "return whole_rows(values if self.dim == -1 else move_axis(values, -1, self.dim))",
        ("test_maps_masks.py",),
    ),
    # Numbers: types, ranges, digits.
    Fault(
        "a temperature per row may be too small for its dtype",
        "rows/numbers.py",
        "clip(t, floor, ceiling), math.nan)",
        "clip(t, 0.0, ceiling), math.nan)",
        ("test_maps_edges.py",),
    ),
    Fault(
        "bfloat16 is computed in bfloat16",
        "arrays/form.py",
        'self.dtype_name not in ("float32", "float64"):',
        'self.dtype_name not in ("bfloat16", "float32", "float64"):',
        ("test_kernels_half.py", "test_rows_shapes.py"),
    ),
    Fault(
        "the upper tail of a symmetric link is computed as 1 − F",
        "links/symmetric.py",
        "return self.cdf(-z)  # type: ignore[return-value]  # of its kind\n\n    def tail(",
        "return 1 - self.cdf(z)  # type: ignore[return-value]\n\n    def tail(",
        ("test_links.py",),
    ),
    Fault(
        "the search for a temperature ends too soon",
        "metrics/temperature_search.py",
        '{"float32": 36, "float64": 58}',
        '{"float32": 36, "float64": 40}',
        ("test_metrics_temperature.py",),
    ),
    # Choices, samples, losses.
    Fault(
        "equal scores are chosen from the highest index on",
        "formulas/choice.py",
        "place = cumulative_sums(cast(tie, dtype)) - 1",
        "place = xp.flip(cumulative_sums(xp.flip(cast(tie, dtype), axis=-1)), axis=-1) - 1",
        ("test_maps_hard.py", "test_formulas_choice.py"),
    ),
    Fault(
        "a torch.Generator is ignored",
        "arrays/torch/state.py",
        "if rng is None:\n        return draw(",
        "if True:\n        return draw(",
        ("test_subsets_sampling.py", "test_distributions.py"),
    ),
    Fault(
        "leave-one-out subtracts the mean of all samples",
        "estimators/score.py",
        "return (fixed - mean(fixed)) * (m / (m - 1))",
        "return fixed - mean(fixed)",
        ("test_estimators.py",),
    ),
    Fault(
        "the marginals of k-subsets are those of what is left out",
        "subsets/conditional_bernoulli.py",
        "answer = xp.where(rows.z > 0, 1 - tail, tail)",
        "answer = xp.where(rows.z > 0, tail, 1 - tail)",
        ("test_kernels_subsets.py", "test_distributions_k_subset_gradients.py"),
    ),
    Fault(
        "the mean of a loss counts ignored rows",
        "losses/reduced.py",
        "return playing & target.used",
        "return playing",
        ("test_losses_family.py",),
    ),
    Fault(
        "label smoothing spreads its share over the other labels alone",
        "losses/labels.py",
        "even = target.smoothing / count",
        "even = target.smoothing / (count - 1)",
        ("test_losses_family.py",),
    ),
    # Segments, blocks, processes, devices.
    Fault(
        "the mean of a loss counts segments without entries",
        "losses/segments.py",
        "return over_rows(whole, counted, reduction)",
        "return over_rows(whole, None, reduction)",
        ("test_rows_segments.py",),
    ),
    Fault(
        "the last entry of each block of a long row is left out",
        "streaming/blocks.py",
        "stop = min(start + BLOCK, source.size)",
        "stop = min(start + BLOCK - 1, source.size)",
        ("test_streaming.py",),
    ),
    Fault(
        "rows in several processes send a message for each sum",
        "rows/shards/reductions.py",
        "totals = ranks.sum(torch.stack([one.detach().double() for one in local]))",
        "totals = [ranks.sum(one.detach().double()) for one in local]",
        ("test_distributed.py",),
    ),
    Fault(
        "two numbers per row of a DTensor are placed as one",
        "adapters/torch/sharding.py",
        "return Shard(way.dim + before) if",
        "return Shard(way.dim) if",
        ("test_adapters_sharded.py",),
    ),
    # Arguments and what is around the maps.
    Fault(
        "an error of a number does not name the value",
        "arrays/checks.py",
        'raise ValueError(f"{name} must be {_text(allowed)}; got {value!r}{also}")',
        'raise ValueError(f"{name} must be {_text(allowed)}")',
        ("test_schedules.py", "test_arrays_checks.py"),
    ),
    Fault(
        "a router normalizes only from three experts per token on",
        "nn/routing/checks.py",
        "(selection in EACH_K and k > 1)",
        "(selection in EACH_K and k > 2)",
        ("test_nn_router.py",),
    ),
    Fault(
        "what an expert requires is measured at the k-th largest score, not at the next",
        "maps/balance.py",
        "cutoff = _kth_largest(biased, k + 1)",
        "cutoff = _kth_largest(biased, k)",
        ("test_nn_router_quantile_examples.py",),
    ),
    Fault(
        "a histogram keeps its first bin when its grid becomes coarser",
        "nn/routing/histogram.py",
        "torch.exp2(before.exponent - self.exponent)) - self.first",
        "torch.exp2(before.exponent - self.exponent)) - before.first",
        ("test_nn_router_quantile_examples.py",),
    ),
    Fault(
        "the load of experts is divided by the tokens, not by the choices",
        "nn/routing/losses.py",
        "load = counts.to(shares.dtype) / counts.sum().clamp(min=1)",
        "load = counts.to(shares.dtype) / max(1, len(logits))",
        ("test_nn_router_load.py",),
    ),
    Fault(
        "a pruned weight that is loaded does not get its mask",
        "nn/pruning/weight.py",
        'saved = state.get(f"{prefix}mask")',
        'state.pop(f"{prefix}mask", None)\n        saved = None',
        ("test_nn_pruning.py", "test_nn_pruning_modes.py"),
    ),
    Fault(
        "a schedule of an array reaches its end a step late",
        "schedules.py",
        "xp.clip(_floats(step) / self.steps, 0.0, 1.0)",
        "xp.clip(_floats(step) / (self.steps + 1), 0.0, 1.0)",
        ("test_schedules.py",),
    ),
    Fault(
        "kofn overwrites a single file without --force",
        "commands/files.py",
        "if about is not None and not force:",
        "if about is not None and len([*names]) > 1 and not force:",
        ("test_commands_explore.py", "test_commands_compare.py"),
    ),
    Fault(
        "kofn apply goes on from a record that somebody changed",
        "commands/apply/partial.py",
        'record.pop("digest") != _digest(record)',
        'not record.pop("digest")',
        ("test_commands_damage.py",),
    ),
    Fault(
        "a library that was cut is loaded",
        "kernels/cpu/runtime/whole.py",
        "if has < promised:",
        "if has == 0 < promised:",
        ("test_kernels_library.py",),
    ),
    Fault(
        "two sources of an estimator draw the same numbers, of one integer",
        "arrays/random.py",
        "        rng = _seeded(rng, like)\n    jax",
        "        pass\n    jax",
        ("test_package_seeds.py",),
    ),
    Fault(
        "a loss of all processes has the gradient of their sum, not of their mean",
        "nn/routing/losses.py",
        "total * (processes.size / number)",
        "total / number",
        ("test_nn_router_processes.py",),
    ),
    # Choices made twice.
    Fault(
        "a nucleus holds p of all entries, not of the k largest",
        "formulas/truncated.py",
        "inside = playing & (keys >= expand(last))",
        "inside = playing",
        ("test_maps_sparse_softmax.py",),
    ),
    Fault(
        "a label that rounding has lost is not in the sum of its set",
        "formulas/truncated.py",
        "if joins is not None:\n        total",
        "if joins is None:\n        total",
        ("test_losses_sets.py",),
    ),
    Fault(
        "a teacher whose tokens are all named costs what it has left in ordinary digits",
        "formulas/named.py",
        "log_p = _log1mexp(log_whole)",
        "log_p = xp.log(1 - xp.exp(log_whole))",
        ("test_losses_distillation.py",),
    ),
    Fault(
        "a token that is left to the router is sent to the last expert",
        "nn/routing/following.py",
        "torch.where(told, rows, own)",
        "torch.where(told, rows, rows % 8)",
        ("test_nn_router_replay.py",),
    ),
    Fault(
        "a balance by quantiles learns from replayed tokens",
        "nn/routing/routing.py",
        "not_replayed(routed.replayed, mask)",
        "mask",
        ("test_nn_router_replay.py",),
    ),
    Fault(
        "the load of replayed tokens moves the bias",
        "nn/routing/base.py",
        "taken = not_replayed(replayed[:, None], taken)",
        "pass",
        ("test_nn_router_replay.py",),
    ),
    Fault(
        "of calls with equal scores, a checkpoint replays the first",
        "nn/routing/following.py",
        "calls.sort(key=lambda each: each.distance(node))",
        "calls.sort(key=lambda each: each.start)",
        ("test_nn_router_replay.py",),
    ),
    Fault(
        "of several calls, a checkpoint replays the one with the most different scores",
        "nn/routing/following.py",
        ".sum(-1).argmin()",
        ".sum(-1).argmax()",
        ("test_nn_router_replay.py",),
    ),
)
