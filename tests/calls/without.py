"""Public names that take no arrays, or need what the ordinary tests do not have, and why."""

from support import LINKS

_NO_ARRAYS = "takes numbers and names"
_SHAPES = "says the shape of what it was made of"
_STATE = "changes or describes the state of a module"
_OTHERS = "takes modules and files of another library"
_COMPILED = "needs a compiler; test_nn_flex_attention.py"

WITHOUT_ARRAYS: dict[str, str] = {
    **dict.fromkeys(
        [
            *(f"kofn.{law}.batch_shape" for law in ("KSubset", "PlackettLuce", "Categorical")),
            *(f"kofn.{law}.batch_shape" for law in ("Bernoulli", "Normal", "RelaxedOneHot")),
            *(f"kofn.{law}.event_shape" for law in ("KSubset", "PlackettLuce", "Categorical")),
            *(f"kofn.{law}.event_shape" for law in ("Bernoulli", "Normal", "RelaxedOneHot")),
            *(f"kofn.{law}.log_choices" for law in ("KSubset", "Categorical", "Bernoulli")),
        ],
        _SHAPES,
    ),
    **dict.fromkeys(
        [
            *("kofn.Link", "kofn.links.Link", *(f"kofn.links.{name}" for name in LINKS)),
            *("kofn.estimators.TABLE", "kofn.estimators.Distribution"),
            *(f"kofn.estimators.Distribution.{name}" for name in ("log_prob", "sample")),
            *(f"kofn.estimators.Study.{name}" for name in ("enumerated", "relative", "unbiased")),
            *(f"kofn.estimators.RunningMean.{name}_state_dict" for name in ("load",)),
            "kofn.estimators.RunningMean.state_dict",
            *("kofn.schedules.Schedule", "kofn.schedules.UntilHard"),
            *("kofn.schedules.UntilHard.next", "kofn.schedules.constant"),
            *("kofn.schedules.cosine", "kofn.schedules.exponential", "kofn.schedules.linear"),
            *("kofn.schedules.until_hard", "kofn.nn.PruningSchedule"),
            *(f"kofn.nn.PruningSchedule.{name}" for name in ("freezes_at", "kept")),
            *("kofn.nn.PruningSchedule.temperature_at", "kofn.onnx.translations"),
        ],
        _NO_ARRAYS,
    ),
    **dict.fromkeys(
        [
            "kofn.links.ScalarLink",
            *(f"kofn.links.ScalarLink.{name}" for name in ("cdf_slope", "sf_slope", "edge")),
            *(f"kofn.links.ScalarLink.{name}" for name in ("log_tail", "tail_slope")),
            *(f"kofn.links.ScalarLink.{name}" for name in ("has_infinite_tails", "inner")),
            *(f"kofn.links.ScalarLink.{name}" for name in ("integral_ends", "integral_is_known")),
            *(f"kofn.links.ScalarLink.{name}" for name in ("map_alpha", "median", "with_alpha")),
            *(f"kofn.links.ScalarLink.{name}" for name in ("reversed_hazard", "upper_quantile")),
            "kofn.links.ScalarLink.static_and_array_alpha",
        ],
        "it is a Link: links/test_links_scalar.py",
    ),
    **dict.fromkeys(
        [
            "kofn.nn.TopKRouter.current_temperature",
            "kofn.nn.TopKRouter.reset_parameters",
            "kofn.nn.SparseAttention.reset_parameters",
            *(f"kofn.nn.TopKSAE.current_{name}" for name in ("k", "temperature")),
            *("kofn.nn.TopKSAE.decoder", "kofn.nn.TopKSAE.reset_parameters"),
            *(f"kofn.nn.SoftTopK.current_{name}" for name in ("k", "temperature")),
            *(f"kofn.nn.SoftTopK.{name}" for name in ("freeze", "reset_parameters", "step")),
            *(f"kofn.nn.SoftTopK.{name}" for name in ("score_parameters", "weights")),
            *("kofn.nn.prune", "kofn.nn.Pruner"),
            *(f"kofn.nn.Pruner.{name}" for name in ("entropy", "finalize", "freeze", "frozen")),
            *(f"kofn.nn.Pruner.{name}" for name in ("masks", "other_parameters", "step")),
            *(f"kofn.nn.Pruner.{name}" for name in ("score_parameters", "steps")),
            "kofn.nn.check_semi_structured",
            *("kofn.nn.record_routing", "kofn.nn.replay_routing", "kofn.nn.RoutingRecord"),
            *(f"kofn.nn.RoutingRecord.{name}" for name in ("indices", "sequences")),
        ],
        _STATE,
    ),
    **dict.fromkeys(
        [
            *(f"kofn.feature_selection.SoftTopKSelector{name}" for name in ("", ".fit")),
            *(
                f"kofn.integrations.{name}_dictionary_learning"
                for name in ("dictionary_learning.from", "dictionary_learning.to")
            ),
            *(f"kofn.integrations.saelens.{name}_saelens" for name in ("from", "to")),
            *(f"kofn.integrations.expert_bias.{name}_expert_bias" for name in ("export", "load")),
            "kofn.integrations.torch_geometric.SelectSoftTopK",
            *(f"kofn.integrations.transformers.{name}_routers" for name in ("patch", "unpatch")),
            *(
                f"kofn.integrations.transformers.{name}_attention"
                for name in ("register", "unregister")
            ),
        ],
        _OTHERS,
    ),
    "kofn.PlackettLuce.to_torch": "torch.distributions has no such samples; it raises an error",
    "kofn.nn.sparse_flex_attention": _COMPILED,
}
