"""The router of gpt_oss; pickle finds its class here."""

from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter

from kofn.integrations.transformers.routers.patched import PatchedRouter


class KofnGptOssRouter(PatchedRouter, GptOssTopKRouter):
    """The stock router with the gates of kofn."""

    model_type = "gpt_oss"
    always_normalizes = True
