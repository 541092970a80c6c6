"""The bias by quantiles, as a function: that of the router, on every framework."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from kofn import balance, nn, topk_gates

E, K = 8, 2
RNG = np.random.default_rng(0)
LOGITS = (RNG.normal(size=(4, 60, E)) + np.linspace(-2, 2, E)).astype(np.float32)
MAKE = {"numpy": np.asarray, "torch": torch.tensor, "jax": jnp.asarray}
JITTED = jax.jit(balance.quantile_bias, static_argnums=1, static_argnames="ema")


@pytest.mark.parametrize("framework", MAKE)
@pytest.mark.parametrize(("ema", "masked"), [(0.0, False), (0.9, True)])
def test_it_is_the_bias_of_the_router(framework, ema, masked):
    router = nn.TopKRouter(E, E, K, balance="quantile", ema=ema)
    router.weight.data = torch.eye(E)
    function = JITTED if framework == "jax" else balance.quantile_bias
    bias = MAKE[framework](np.zeros(E, np.float32))
    for number, logits in enumerate(LOGITS):
        keep = (np.arange(60) + number) % 3 > 0 if masked else None
        router(torch.tensor(logits), mask=None if keep is None else torch.tensor(keep))
        nn.step_routers(router)
        mask = None if keep is None else MAKE[framework](keep)
        bias = function(MAKE[framework](logits), K, bias, ema=ema, mask=mask)
        assert type(bias) is type(MAKE[framework](logits))
        np.testing.assert_allclose(np.asarray(bias), router.balance.bias.numpy(), atol=1e-6)


def test_the_load_is_nearly_even_after_a_few_steps():
    logits, bias = LOGITS.reshape(-1, E), np.zeros(E, np.float32)
    loads = []
    for _ in range(8):
        chosen = topk_gates(logits, K, bias=bias)[1]
        loads.append(np.bincount(chosen.ravel(), minlength=E).max() / (chosen.size / E))
        bias = balance.quantile_bias(logits, K, bias)
    assert loads[0] > 2.5
    assert loads[1] < 1.7
    assert loads[-1] < 1.1


@pytest.mark.parametrize("framework", MAKE)
def test_leading_dimensions_are_tokens_and_what_is_unknown_counts_nothing(framework):
    made, logits, zeros = MAKE[framework], LOGITS[0].copy(), np.zeros(E, np.float32)
    whole = balance.quantile_bias(logits, K, zeros)
    folded = balance.quantile_bias(made(logits.reshape(3, 20, E)), K, made(zeros))
    np.testing.assert_allclose(np.asarray(folded), whole, atol=1e-6)
    spoilt = np.concatenate([logits, np.full((1, E), np.nan, np.float32)])
    found = balance.quantile_bias(made(spoilt), K, made(zeros))
    np.testing.assert_allclose(np.asarray(found), whole, atol=1e-6)
    old = made(np.linspace(-1, 1, E).astype(np.float32))
    for x, k in ((logits[:0], K), (np.nan * logits, K), (logits, E)):
        np.testing.assert_array_equal(balance.quantile_bias(made(x), k, old), np.asarray(old))
    logits[:, 3] = -np.inf  # an expert that nobody may use
    found = np.asarray(balance.quantile_bias(made(logits), K, old))
    assert found[3] == np.asarray(old)[3]
    assert abs(np.delete(found, 3).sum() + found[3]) < 2  # finite


def test_the_mean_over_devices_is_what_the_router_takes():
    old = np.linspace(-1, 1, E).astype(np.float32)
    parts = np.stack([balance.quantile_bias(each, K, old, ema=0.5) for each in LOGITS[:2]])
    router = nn.TopKRouter(E, E, K, balance="quantile", ema=0.5)
    router.weight.data, router.balance.bias = torch.eye(E), torch.tensor(old)
    for each in LOGITS[:2]:  # two micro-batches of a step
        router(torch.tensor(each))
    nn.step_routers(router)
    np.testing.assert_allclose(parts.mean(0), router.balance.bias.numpy(), atol=1e-6)


def test_it_has_no_gradient():
    logits = torch.tensor(LOGITS[0], requires_grad=True)
    assert not balance.quantile_bias(logits, K, torch.zeros(E)).requires_grad
    slope = jax.grad(lambda x: balance.quantile_bias(x, K, jnp.ones(E)).sum())(
        LOGITS[0] + jnp.ones(E)
    )
    assert not slope.any()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"k": 9}, "k must be an integer in 1..8, the number of experts; got 9"),
        ({"bias": np.zeros(3)}, r"bias must have a number per expert, shape \(8,\); got \(3,\)"),
        ({"ema": 1.0}, r"ema must be a number in \[0, 1\); got 1.0"),
        ({"mask": np.ones((60, 8), bool)}, "mask"),
    ],
)
def test_wrong_arguments_are_named(given, words):
    with pytest.raises(ValueError, match=words):
        balance.quantile_bias(**({"scores": LOGITS[0], "k": K, "bias": np.zeros(E)} | given))
