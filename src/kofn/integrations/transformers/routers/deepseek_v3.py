"""The router of deepseek_v3; pickle finds its class here."""

from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from kofn.integrations.transformers.routers.patched import PatchedRouter


class KofnDeepseekV3Router(PatchedRouter, DeepseekV3TopkRouter):
    """The stock router with the gates of kofn."""

    model_type = "deepseek_v3"
