"""The router of mixtral; pickle finds its class here."""

from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

from kofn.integrations.transformers.routers.patched import PatchedRouter


class KofnMixtralRouter(PatchedRouter, MixtralTopKRouter):
    """The stock router with the gates of kofn."""

    model_type = "mixtral"
    always_normalizes = True
