"""patch_routers: models of transformers get routers whose every logit has a gradient."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Never

from transformers import monkey_patching

from kofn.arrays.names import plain, unknown_keyword
from kofn.arrays.typing import LinkName
from kofn.integrations.transformers.routers import classes, table
from kofn.links import Link
from kofn.nn.routing.routing import JOINT, Routing

__all__ = ["RouterPatch", "patch_routers", "unpatch_routers"]


class RouterPatch:
    """The answer of `patch_routers`: in a `with` block, plain constructors are patched, too."""

    def __init__(self, patches: dict[str, table.Patch]) -> None:
        self.models = tuple(patches)
        self._patches = patches
        self._classes: AbstractContextManager[None] | None = None

    def __enter__(self) -> RouterPatch:
        for model, patch in self._patches.items():
            if self._classes is not None or table.ACTIVE.get(model) is not patch:
                raise RuntimeError(
                    f"this patch of {model!r} is in use, has ended or has been replaced; "
                    "call patch_routers again"
                )
        self._classes = classes.replaced(self.models)
        self._classes.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._classes is not None:
            self._classes.__exit__(None, None, None)
        for model, patch in self._patches.items():
            if patch.before is None:
                unpatch_routers(model)
            elif model in table.ACTIVE:  # nothing has ended the patches inside of the block
                table.ACTIVE[model] = patch.before

    def __repr__(self) -> str:
        return f"RouterPatch({', '.join(map(repr, self.models))})"


def patch_routers(
    *models: str,
    selection: Literal["hard", "soft", "expert_choice", "budget"] = "hard",
    gates: Literal["mixture", "topk"] | None = None,
    normalize: bool | None = None,
    link: LinkName | Link = "logistic",
    temperature: float | Callable[[Any], Any] = 1.0,
    balance: float | Literal["quantile"] | None = None,
    inference_threshold: bool = False,
    max_experts: int | None = None,
    verbose: bool = True,
    bins: int | None = None,
    ema: float = 0.0,
    **others: Never,
) -> RouterPatch:
    """Replace the routers of transformers models that are created from now on.

    This holds for `from_pretrained` and `from_config`, and in a `with` block also for plain
    constructors. Models that exist keep their routers.

    Args:
        models: "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3", "glm4_moe", "gpt_oss".
            k and the number of experts are the model configuration's.
        selection, gates, link, temperature, balance, max_experts, bins, ema: as for
            `nn.TopKRouter`. The defaults choose the same experts as the stock router, with the same
            weights. For deepseek_v3 and glm4_moe, which have groups and a correction bias, only
            selection="hard", and balance=None or "quantile", which sets that bias.
        normalize: True or False as there. By default, "hard" follows the model: mixtral and gpt_oss
            normalize, the others do if `norm_topk_prob` says so. With k = 1 they do not, with a
            warning; "soft" does, the others do not.
        inference_threshold: as there; it has to be True for "expert_choice" and "budget", because
            all these models are causal. The choice still sees later tokens in training.
        verbose: log the patched classes, by the logger "kofn.integrations" at the level INFO.

    Returns:
        A context manager; when it is left, all is as it was before this call, also within another
        patch. Outside of `with`, `unpatch_routers` ends the patch.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is not allowed. If it does not fit
            a model's configuration, the error comes when the model is made.

    Example:
        >>> from transformers import AutoModelForCausalLM, MixtralConfig
        >>> from kofn.integrations.transformers import patch_routers
        >>> size = dict(hidden_size=16, intermediate_size=8, num_hidden_layers=1, vocab_size=32)
        >>> config = MixtralConfig(num_attention_heads=2, num_key_value_heads=1, **size)
        >>> with patch_routers("mixtral", verbose=False):
        ...     model = AutoModelForCausalLM.from_config(config)
        >>> model.model.layers[0].mlp.gate
        KofnMixtralRouter(
          (routing): Routing(8 experts, k=2, selection='hard', gates='mixture', normalize=True)
        )
    """
    if others:
        raise unknown_keyword(patch_routers, others)
    options = dict(
        selection=selection,
        gates=gates,
        normalize=normalize,
        link=link,
        temperature=temperature,
        balance=balance,
        inference_threshold=inference_threshold,
        max_experts=max_experts,
        bins=bins,
        ema=ema,
    )
    _check(models, options)
    for model in models:
        _check_free(table.MODELS[model].stock)
    patches = {model: table.Patch(options, table.ACTIVE.get(model)) for model in models}
    for model in models:
        table.record_as(model, table.stock_or_ours(model))
    table.ACTIVE.update(patches)
    classes.serve(table.ACTIVE)
    if verbose:
        table.logger.info(_summary(models, options))
    return RouterPatch(patches)


def unpatch_routers(*models: str, **others: Never) -> None:
    """Undo `patch_routers`; existing models keep their routers.

    Args:
        models: as for `patch_routers`; all that are patched, if none is named. One that is not
            patched is left as it is.

    Raises:
        ValueError: an unknown model.
    """
    if others:
        raise unknown_keyword(unpatch_routers, others)
    _check_names(models)
    for model in models or tuple(table.ACTIVE):
        if table.ACTIVE.pop(model, None) is None:
            continue
        classes.restore(model)
        table.record_as(model, table.stock_class(model))
    classes.serve(table.ACTIVE)


def _check(models: tuple[str, ...], options: dict[str, Any]) -> None:
    if not models:
        raise ValueError(f"models must name at least one of {tuple(table.MODELS)}; got none")
    _check_names(models)
    selection = options["selection"]
    settings = {**options, "normalize": options["normalize"] or False}
    # Everything that does not depend on a configuration is checked now, not in its constructor.
    Routing(1 << 20, 2, device="meta", **settings)
    if selection in JOINT and not options["inference_threshold"]:
        raise ValueError(
            f"inference_threshold must be True for selection={selection!r}: these models are "
            "causal, and without it a token's experts depend on later tokens; got False"
        )
    for model in models:
        if table.MODELS[model].groups:
            _check_groups(model, selection, options["balance"])


def _check_groups(model: str, selection: str, balance: float | str | None) -> None:
    why = f"for {model!r}, whose router has groups of experts and a correction bias of its own"
    if selection != "hard":
        raise ValueError(f"selection must be 'hard' {why}; got {selection!r}")
    if balance not in (None, "quantile"):
        raise ValueError(f"balance must be None {why}, or 'quantile'; got {balance!r}")


def _check_names(models: tuple[str, ...]) -> None:
    for model in models:
        if model not in table.MODELS:
            known = isinstance(model, str) and plain(model)
            own = [each for each in table.MODELS if plain(each) == known]
            hint = f"; you may mean {own[0]!r}" if own else ""
            said = repr(model)
            if not isinstance(model, str):  # a model's own text is pages long
                said = f"a {type(model).__name__}: give names, before models are made"
            raise ValueError(f"models must be among {tuple(table.MODELS)}; got {said}{hint}")


def _check_free(stock: str) -> None:
    now = monkey_patching.get_patch_mapping().get(stock)
    if now is not None:
        raise ValueError(
            f"{stock} is already replaced by {now.__name__}; "
            "end that with transformers.monkey_patching.unregister_patch_mapping first"
        )


def _summary(models: tuple[str, ...], options: dict[str, Any]) -> str:
    chosen = {name: value for name, value in options.items() if value != table.OPTIONS[name]}
    chosen = {"selection": options["selection"], **chosen}
    named = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
    lines = [f"kofn patches the routers of models that are loaded from now on ({named}):"]
    for model in models:
        names = table.MODELS[model]
        lines.append(f"  {model}: {names.stock} -> {names.ours}")
    return "\n".join([*lines, "unpatch_routers() ends this."])
