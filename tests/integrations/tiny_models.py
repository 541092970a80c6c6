"""Tiny random models of transformers, for the tests marked `extras`."""

import contextlib
import logging
from logging.handlers import BufferingHandler

import torch

MODELS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3", "glm4_moe", "gpt_oss")
GROUPED = ("deepseek_v3", "glm4_moe")
EXPERTS = 8

COMMON = dict(
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    vocab_size=32,
    max_position_embeddings=64,
    num_experts_per_tok=2,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
GROUPS = dict(
    n_routed_experts=EXPERTS,
    n_group=4,
    topk_group=2,
    n_shared_experts=1,
    moe_intermediate_size=8,
    first_k_dense_replace=0,
    routed_scaling_factor=2.5,
)
OWN = {
    "mixtral": dict(num_local_experts=EXPERTS),
    "qwen2_moe": dict(
        num_experts=EXPERTS, moe_intermediate_size=8, shared_expert_intermediate_size=8
    ),
    "qwen3_moe": dict(num_experts=EXPERTS, moe_intermediate_size=8, norm_topk_prob=True),
    "olmoe": dict(num_experts=EXPERTS),
    "deepseek_v3": dict(
        **GROUPS,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=4,
    ),
    "glm4_moe": GROUPS,
    "gpt_oss": dict(num_local_experts=EXPERTS, sliding_window=8),
}


def config(model, **changes):
    from transformers import AutoConfig

    own = {**COMMON, **OWN[model]}
    if model == "deepseek_v3":
        own["num_key_value_heads"] = 4
    if model == "gpt_oss":  # its default stretches positions by a factor that fits its size alone
        own["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    return AutoConfig.for_model(model, **{**own, **changes})


def made(model, seed=0, **changes):
    """A model with random weights, with logits that are large enough to differ."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config(model, initializer_range=0.2, **changes))


def patched(model, seed=0, options=None, **changes):
    """The same model with kofn's routers."""
    from kofn.integrations.transformers import patch_routers

    with patch_routers(model, verbose=False, **(options or {})):
        return made(model, seed, **changes)


def routers(net):
    """The routers of a model, stock ones or kofn's, from the first layer on."""
    return [each for each in net.modules() if type(each).__name__.lower().endswith("router")]


def tokens(batch=2, length=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 32, (batch, length), generator=generator)


@contextlib.contextmanager
def logged(level):
    """What kofn.integrations logs from a level on, as a list that grows."""
    handler, logger = BufferingHandler(1000), logging.getLogger("kofn.integrations")
    before = logger.level
    logger.setLevel(level)
    logger.addHandler(handler)
    try:
        yield handler.buffer
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
