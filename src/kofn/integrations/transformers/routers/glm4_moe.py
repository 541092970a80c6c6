"""The router of glm4_moe; pickle finds its class here."""

from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter

from kofn.integrations.transformers.routers.patched import PatchedRouter


class KofnGlm4MoeRouter(PatchedRouter, Glm4MoeTopkRouter):
    """The stock router with the gates of kofn."""

    model_type = "glm4_moe"
