"""nn.TopKSAE(signed=True): the largest magnitudes are kept, with their signs (AbsTopK)."""

import copy
import pickle

import pytest
import torch
from torch.nn import functional

from kofn import nn, soft_topk

T, D, N, K = 12, 16, 40, 4

selections = pytest.mark.parametrize("selection", ["token", "batch"])


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def autoencoder(**changes):
    return nn.TopKSAE(**{**dict(d_in=D, d_sae=N, k=K, signed=True), **changes})


@selections
def test_the_code_has_the_scores_of_largest_magnitude(selection):
    sae, x = autoencoder(selection=selection), torch.randn(3, 4, D)
    reconstruction, code, scores = sae(x)
    rows = scores.view(T, N) if selection == "token" else scores.view(1, T * N)
    found = rows.abs().topk(K if selection == "token" else K * T).indices
    wanted = torch.zeros_like(rows).scatter(1, found, rows.gather(1, found))
    assert torch.equal(code, wanted.view(3, 4, N))
    assert (code < 0).any()
    assert (code > 0).any()
    decoder = functional.normalize(sae.W_dec, dim=-1)
    assert torch.allclose(reconstruction, code @ decoder + sae.b_dec, atol=1e-5)


@selections
def test_an_opposite_input_has_the_opposite_code(selection):
    sae, x = autoencoder(selection=selection), torch.randn(T, D)
    assert torch.equal(sae(x).code, -sae(-x).code)
    for _ in range(3):
        sae(x)
    sae.eval()
    assert torch.equal(sae.encode(x), -sae.encode(-x))


@selections
def test_the_gradient_of_silent_latents_moves_them_away_from_zero(selection):
    """Exact gradient, plus the least kept magnitude times sign · that of the soft weights."""
    sae = autoencoder(selection=selection, temperature=0.7)
    sae.firing.silence.counts[::2] = 0  # the even latents have just fired
    scores = torch.randn(T, N, requires_grad=True)
    back = torch.randn(T, N)
    code = sae._code(scores, None)
    (found,) = torch.autograd.grad((code * back).sum(), scores)
    free = scores.detach().requires_grad_()
    sizes = free.abs() if selection == "token" else free.abs().reshape(1, -1)
    count = K if selection == "token" else K * T
    least = sizes.detach().topk(count).values[:, -1:]
    weights = soft_topk(sizes, count, temperature=0.7 * free.detach().std(correction=0))
    silent = torch.arange(N) % 2 == 1
    added = torch.where(silent, (least * weights).view(T, N) * free.detach().sign(), 0)
    kept = code.detach() != 0
    (wanted,) = torch.autograd.grad(((free * kept + added) * back).sum(), free)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert (found[:, silent] != 0).float().mean() > 0.9


def test_in_evaluation_magnitudes_exceed_the_threshold():
    sae, x = autoencoder(selection="batch", k=3.5), torch.randn(1000, D)
    sae.calibrate(x)
    code = sae.eval().encode(x)
    assert (code != 0).sum() == 3500
    assert code[code != 0].abs().min() > sae.running.cut
    assert (sae(x).scores[code == 0].abs() <= sae.running.cut).all()


def test_latents_of_either_sign_have_fired():
    sae = autoencoder()
    sae.silent_after = 1
    code = sae(torch.randn(T, D)).code
    found = sae.statistics()
    assert torch.allclose(found["frequency"], (code != 0).float().mean(0))
    assert found["l0"] == pytest.approx(K)


def test_the_auxiliary_loss_takes_magnitudes():
    sae, x = autoencoder(silent_after=1, gradient="chosen"), torch.randn(T, D)
    output = sae(x)
    silent = sae.silent_latents()
    assert 0 < silent.sum() < N
    left = (x - output.reconstruction).detach()
    scores = output.scores.detach()[:, silent]
    top = scores.abs().topk(5).indices
    code = torch.zeros_like(scores).scatter(1, top, scores.gather(1, top))
    decoder = functional.normalize(sae.W_dec.detach(), dim=-1)[silent]
    error = (code @ decoder - left).square().sum() / (left - left.mean(0)).square().sum()
    assert nn.auxk_loss(sae, x, output, k=5).item() == pytest.approx(error.item(), rel=1e-4)
    sae.firing.silence.counts.zero_()
    sae.firing.silence.counts[:2] = 1
    few = nn.auxk_loss(sae, x, output, k=5)  # more than there are
    few.backward()
    assert few.isfinite()
    assert (sae.W_dec.grad[2:] == 0).all()


@selections
def test_padding_nan_and_all_latents_are_fine(selection):
    sae, x = autoencoder(selection=selection), torch.randn(T, D)
    mask = torch.arange(T) < 7
    other = copy.deepcopy(sae)
    found, compact = sae(x, mask).code, other(x[mask]).code
    assert (found[~mask] == 0).all()
    assert torch.allclose(found[mask], compact, atol=1e-6)
    x[3] = torch.nan
    code = sae(x).code
    assert code[torch.arange(T) != 3].isfinite().all()
    assert sae(torch.zeros(0, D)).code.shape == (0, N)
    everything = autoencoder(selection=selection, k=N)
    output = everything(torch.randn(T, D))
    assert torch.equal(output.code, output.scores)
    output.reconstruction.sum().backward()
    assert everything.W_enc.grad.isfinite().all()


@selections
def test_infinite_scores_that_are_not_kept_are_zero(selection):
    sae, scores = autoencoder(selection=selection), torch.randn(T, N)
    scores[2, :6] = torch.tensor([1.0, -1.0]).repeat(3) * torch.inf
    code = sae._code(scores, None)
    assert not code.isnan().any()
    assert code.isinf().sum() == (K if selection == "token" else 6)


def test_it_compiles_and_learns_a_k():
    torch._dynamo.reset()
    sae, x = autoencoder(selection="batch", learned_k=True), torch.randn(T, D)
    twin = copy.deepcopy(sae)
    compiled = torch.compile(sae, fullgraph=True, backend="aot_eager")
    for net, call in ((sae, compiled), (twin, twin)):
        (call(x).reconstruction - x).square().sum().backward()
        assert net.k.log.grad.isfinite().all()
        assert (net.k.log.grad != 0).all()
    assert torch.allclose(sae.W_enc.grad, twin.W_enc.grad, atol=1e-4)
    assert torch.allclose(sae.k.log.grad, twin.k.log.grad, rtol=1e-3)


def test_it_is_said_and_kept():
    sae = autoencoder()
    assert "signed=True" in repr(sae)
    assert "signed" not in repr(autoencoder(signed=False))
    assert pickle.loads(pickle.dumps(sae)).signed
    with pytest.raises(TypeError, match="signed must be True or False"):
        autoencoder(signed="yes")


def test_one_that_was_pickled_before_there_were_signs_has_none():
    sae, x = nn.TopKSAE(6, 20, 3), torch.randn(4, 6)
    wanted = sae(x).code
    del sae.__dict__["signed"]
    loaded = pickle.loads(pickle.dumps(sae))
    assert torch.equal(loaded(x).code, wanted)


def test_files_without_signs_refuse_it(tmp_path):
    from kofn.integrations.dictionary_learning import to_dictionary_learning

    with pytest.raises(ValueError, match="signed=True"):
        to_dictionary_learning(autoencoder(), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
