"""kofn's routers and attention in the models of Hugging Face transformers.

It needs transformers: `pip install "kofn[transformers]"`.
"""

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        "kofn.integrations.transformers needs transformers; "
        'install it with: pip install "kofn[transformers]"'
    ) from error

from kofn.integrations.transformers.attention import register_attention, unregister_attention
from kofn.integrations.transformers.routers.patching import patch_routers, unpatch_routers

__all__ = ["patch_routers", "unpatch_routers", "register_attention", "unregister_attention"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)
