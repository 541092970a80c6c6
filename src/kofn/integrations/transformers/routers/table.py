"""Which models are patched, with which arguments, and how their stock classes come back."""

from __future__ import annotations

import logging
import sys
from abc import ABCMeta
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

logger = logging.getLogger("kofn.integrations")


class Names(NamedTuple):
    """Names of a model's stock router and of its replacement."""

    stock: str
    ours: str
    groups: bool = False
    """Whether the router has groups of experts and a correction bias of its own."""


MODELS = {
    "mixtral": Names("MixtralTopKRouter", "KofnMixtralRouter"),
    "qwen2_moe": Names("Qwen2MoeTopKRouter", "KofnQwen2MoeRouter"),
    "qwen3_moe": Names("Qwen3MoeTopKRouter", "KofnQwen3MoeRouter"),
    "olmoe": Names("OlmoeTopKRouter", "KofnOlmoeRouter"),
    "deepseek_v3": Names("DeepseekV3TopkRouter", "KofnDeepseekV3Router", groups=True),
    "glm4_moe": Names("Glm4MoeTopkRouter", "KofnGlm4MoeRouter", groups=True),
    "gpt_oss": Names("GptOssTopKRouter", "KofnGptOssRouter"),
}
"""Models of transformers by their `model_type`."""

OPTIONS: dict[str, Any] = dict(
    selection="hard",
    gates=None,
    normalize=None,
    link="logistic",
    temperature=1.0,
    balance=None,
    inference_threshold=False,
    max_experts=None,
    bins=None,
    ema=0.0,
)


class Patch:
    """The arguments of patch_routers for one model."""

    def __init__(self, options: dict[str, Any], before: Patch | None = None) -> None:
        self.options = options
        self.before = before
        """The patch that this one replaces, until a `with` block ends."""
        self.has_warned = False


ACTIVE: dict[str, Patch] = {}


def options_of(model: str) -> dict[str, Any]:
    """Return the arguments for a new router; the defaults if its model is not patched."""
    return dict(ACTIVE[model].options if model in ACTIVE else OPTIONS)


def warns_now(model: str) -> bool:
    """Return whether a warning is due: once per call of patch_routers, not once per layer."""
    if model not in ACTIVE:
        return True
    first = not ACTIVE[model].has_warned
    ACTIVE[model].has_warned = True
    return first


@cache
def tell_of_saving() -> None:
    """Log, once per process, that a checkpoint has a bias that stock routers do not know."""
    logger.warning(
        "the state of patched routers has a balancing bias, which stock models of transformers "
        "leave out: loaded without patch_routers, this checkpoint chooses other experts"
    )


def router_class(model: str) -> type:
    """Return the class that replaces the stock router of a model."""
    module = import_module(f"kofn.integrations.transformers.routers.{model}")
    return getattr(module, MODELS[model].ours)


def stock_class(model: str) -> type:
    ours = router_class(model)
    return next(each for each in ours.__mro__ if each.__name__ == MODELS[model].stock)


def record_as(model: str, target: type) -> None:
    """Let the model's classes record the logits of routers that are instances of `target`."""
    places = vars(sys.modules[stock_class(model).__module__]).values()
    for each in places:
        recorders = vars(each).get("_can_record_outputs") if isinstance(each, type) else None
        if recorders and "router_logits" in recorders:
            recorders["router_logits"].target_class = target


def stock_or_ours(model: str) -> type:
    """Return a class whose instances are the model's stock routers and their replacements.

    transformers would let all models record the replacements alone, those that exist already, too.
    It leaves a class alone whose name it does not know.
    """
    either = ABCMeta("StockOrKofnRouter", (), {})
    either.register(stock_class(model))
    return either
