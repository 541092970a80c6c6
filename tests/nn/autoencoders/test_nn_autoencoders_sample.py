"""nn.TopKSAE.initialize: where an autoencoder starts, from a sample of its inputs."""

import pytest
import torch
from torch.nn import functional

from kofn import nn, schedules

D, N = 16, 40
WAYS = {
    "token": {},
    "free": dict(gradient="chosen", decoder_norm="free"),
    "batch": dict(selection="batch", k=3.5),
    "annealed": dict(selection="batch", k=schedules.exponential(20, 4, steps=10)),
    "learned": dict(learned_k=True, k=4.4),
    "signed": dict(signed=True),
}


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def autoencoder(**changes):
    return nn.TopKSAE(**{**dict(d_in=D, d_sae=N, k=4), **changes})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_starts_from_the_mean_at_the_scale_of_least_error(way, dtype):
    sae, x = autoencoder(**WAYS[way], dtype=dtype), (3 * torch.randn(500, D) + 7).to(dtype)
    before, live = sae.W_enc.clone(), torch.arange(500) % 3 > 0
    sae.initialize(x.view(5, 100, D), live.view(5, 100), batch_size=500)
    x = x[live]
    close = dict(atol={torch.bfloat16: 0.05, torch.float32: 1e-5}.get(dtype, 1e-12))
    assert torch.allclose(sae.b_dec, x.double().mean(0).to(dtype), **close)
    factor = (sae.W_enc / before).double().mean().item()
    assert torch.allclose(sae.W_enc, before * factor, atol=close["atol"] / 10)
    assert not sae.b_enc.any()
    assert torch.equal(sae.firing.fired.counts, torch.zeros_like(sae.firing.fired.counts))
    assert sae.running is None or sae.running.cut.isinf()
    if dtype == torch.float64:  # the error of other factors is greater
        errors = []
        for each in (1, 0.99, 1.01):
            with torch.no_grad():
                sae.W_enc.copy_(before * factor * each)
            errors.append((sae(x).reconstruction - x).square().mean().item())
        assert errors[0] == min(errors)
        assert errors[0] < x.var(0).mean()


def test_it_starts_from_the_inputs_that_are_finite():
    sae, other, x = autoencoder(), autoencoder(), torch.randn(50, D) + 5
    other.load_state_dict(sae.state_dict())
    x[3, 2], x[7, 0] = torch.nan, torch.inf
    sae.initialize(x)
    other.initialize(x[x.isfinite().all(-1)])
    for name, tensor in sae.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    # A single input is the mean: no latent has a score to scale.
    sae.initialize(x[:1])
    assert torch.equal(sae.b_dec, x[0])
    assert torch.equal(sae.W_enc, other.W_enc)
    for empty in (x * torch.nan, x[:0]):
        with pytest.raises(ValueError, match="x must have an input that is finite; got shape"):
            sae.initialize(empty)
    with pytest.raises(ValueError, match="mask must be True for at least one input"):
        sae.initialize(x, torch.zeros(50, dtype=torch.bool))


def test_far_inputs_leave_no_latent_dead_after_initialize():
    directions = functional.normalize(torch.randn(N, D), dim=-1)
    x = (torch.rand(2000, N) < 0.1).float() @ directions + 20 * directions[0]
    dead = []
    for initialized in (False, True):
        sae = autoencoder(gradient="chosen")
        if initialized:
            sae.initialize(x)
        sae(x)
        dead.append(int(sae.statistics()["dead_latents"]))
    assert dead[0] > N / 2, dead
    assert dead[1] == 0, dead
