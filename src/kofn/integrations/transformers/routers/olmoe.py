"""The router of olmoe; pickle finds its class here."""

from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter

from kofn.integrations.transformers.routers.patched import PatchedRouter


class KofnOlmoeRouter(PatchedRouter, OlmoeTopKRouter):
    """The stock router with the gates of kofn."""

    model_type = "olmoe"
