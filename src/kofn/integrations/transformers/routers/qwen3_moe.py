"""The router of qwen3_moe; pickle finds its class here."""

from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from kofn.integrations.transformers.routers.patched import PatchedRouter


class KofnQwen3MoeRouter(PatchedRouter, Qwen3MoeTopKRouter):
    """The stock router with the gates of kofn."""

    model_type = "qwen3_moe"
