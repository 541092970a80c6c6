"""The router of qwen2_moe; pickle finds its class here."""

from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter

from kofn.integrations.transformers.routers.patched import PatchedRouter


class KofnQwen2MoeRouter(PatchedRouter, Qwen2MoeTopKRouter):
    """The stock router with the gates of kofn."""

    model_type = "qwen2_moe"
