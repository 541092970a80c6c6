"""Autoencoders in the files of SAELens and of dictionary_learning."""

import json
import os
import subprocess
import sys

import pytest
import torch

from kofn import nn, schedules
from kofn.integrations.dictionary_learning import from_dictionary_learning, to_dictionary_learning

D, N, K = 16, 40, 4
FILES = ["cfg.json", "sae_weights.safetensors"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def trained(selection="batch", dtype=torch.float32, k=K, **changes):
    """An autoencoder whose decoder rows have other norms than 1, after a few batches."""
    sae = nn.TopKSAE(D, N, k, selection=selection, dtype=dtype, **changes)
    with torch.no_grad():
        sae.W_dec.mul_(torch.rand(N, 1).to(dtype) + 0.5)
        sae.b_enc.add_(torch.randn(N).to(dtype) / 10)
        sae.b_dec.add_(torch.randn(D).to(dtype) / 10)
    for _ in range(5):
        sae(torch.randn(100, D, dtype=dtype))
    return sae.eval()


@pytest.mark.parametrize("selection", ["token", "batch"])
def test_dictionary_learning_computes_the_same(tmp_path, selection):
    """By the description of its classes: linear layers, ReLU, the k largest or a threshold."""
    sae, x = trained(selection), torch.randn(50, D)
    to_dictionary_learning(sae, tmp_path, trainer={"lm_name": "a/b", "layer": 3})
    assert sorted(os.listdir(tmp_path)) == ["ae.pt", "config.json"]
    config = json.loads((tmp_path / "config.json").read_text())["trainer"]
    state = torch.load(tmp_path / "ae.pt", weights_only=True)
    assert (config["activation_dim"], config["dict_size"], config["k"]) == (D, N, K)
    assert (config["lm_name"], config["layer"]) == ("a/b", 3)
    assert state["k"].dtype == torch.int32
    assert torch.allclose(state["decoder.weight"].norm(dim=0), torch.ones(N))
    encoder, decoder = torch.nn.Linear(D, N), torch.nn.Linear(N, D, bias=False)
    encoder.load_state_dict({n: state[f"encoder.{n}"] for n in ("weight", "bias")})
    decoder.load_state_dict({"weight": state["decoder.weight"]})
    acts = encoder(x - state["b_dec"]).relu()
    if selection == "token":
        assert config["dict_class"] == "AutoEncoderTopK"
        top = acts.topk(K)
        code = torch.zeros_like(acts).scatter(1, top.indices, top.values)
    else:
        assert config["dict_class"] == "BatchTopKSAE"
        code = acts * (acts > state["threshold"])
    output = sae(x)
    assert torch.allclose(code, output.code, atol=1e-6)
    assert torch.allclose(decoder(code) + state["b_dec"], output.reconstruction, atol=1e-5)
    again = from_dictionary_learning(tmp_path)
    assert torch.equal(again(x).code, output.code)
    with pytest.raises(FileExistsError, match=r"ae.pt exists; pass overwrite=True"):
        to_dictionary_learning(sae, tmp_path)


def test_what_dictionary_learning_does_not_have_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"k must be an integer, as a BatchTopKSAE has; got 3\.5"):
        to_dictionary_learning(trained(k=3.5), tmp_path)
    with pytest.raises(TypeError, match=r"sae must be a kofn.nn.TopKSAE; got Linear"):
        to_dictionary_learning(torch.nn.Linear(2, 3), tmp_path)
    assert os.listdir(tmp_path) == []
    to_dictionary_learning(trained(), tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("BatchTopKSAE", "GatedAutoEncoder"))
    with pytest.raises(ValueError, match=r"dict_class must be one of .*; got 'GatedAutoEncoder'"):
        from_dictionary_learning(tmp_path)


def test_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(OSError, match="disk full"):
        to_dictionary_learning(trained(), tmp_path)
    assert os.listdir(tmp_path) == []


def test_the_extra_is_named_where_safetensors_is_missing():
    code = "import sys; sys.modules['safetensors'] = None; import kofn.integrations.saelens"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install "kofn[sae]"' in run.stderr.splitlines()[-1]


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("selection", ["token", "batch"])
def test_saelens_computes_the_same(tmp_path, selection, dtype):
    from sae_lens import SAE

    from kofn.integrations.saelens import from_saelens, to_saelens

    sae, x = trained(selection, dtype), torch.randn(500, D, dtype=dtype)
    to_saelens(sae, tmp_path / "new", metadata={"model_name": "a", "hook_name": "b"})
    assert sorted(os.listdir(tmp_path / "new")) == FILES
    theirs = SAE.load_from_disk(tmp_path / "new")
    assert theirs.cfg.architecture() == {"token": "topk", "batch": "jumprelu"}[selection]
    assert (theirs.cfg.metadata.model_name, theirs.dtype) == ("a", dtype)
    with torch.no_grad():
        output, code = sae(x), theirs.encode(x)
        if selection == "token" and dtype.itemsize == 2:  # ties: torch.topk takes any of them
            assert torch.equal(code.sort(-1).values, output.code.sort(-1).values)
            assert (code == output.code).all(-1).float().mean() > 0.8
        else:
            assert torch.equal(code, output.code)
            assert torch.equal(theirs.decode(code), output.reconstruction)
        again = from_saelens(tmp_path / "new")
        assert again.selection == selection
        assert torch.equal(again(x).code, output.code)
        assert torch.equal(again(x).reconstruction, output.reconstruction)
    assert 3 < (code > 0).float().sum(-1).mean() < 5
    with pytest.raises(FileExistsError, match=r"cfg.json exists; pass overwrite=True"):
        to_saelens(sae, tmp_path / "new")
    to_saelens(sae, tmp_path / "new", overwrite=True)


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")
def test_what_saelens_saves_is_read(tmp_path):
    """Its own TopK with rescaled activations, and its BatchTopK as it is saved for inference."""
    from sae_lens import (
        BatchTopKTrainingSAE,
        BatchTopKTrainingSAEConfig,
        TopKSAE,
        TopKSAEConfig,
    )

    from kofn.integrations.saelens import from_saelens

    x = torch.randn(300, D)
    for rescaled in (False, True):
        theirs = TopKSAE(TopKSAEConfig(d_in=D, d_sae=N, k=K, rescale_acts_by_decoder_norm=rescaled))
        with torch.no_grad():
            theirs.W_dec.mul_(torch.rand(N, 1) + 0.5)
            theirs.save_model(tmp_path / f"topk {rescaled}")
            ours = from_saelens(tmp_path / f"topk {rescaled}")
            code, known = ours(x).code, theirs.encode(x)
            assert torch.equal(code > 0, known > 0)
            # Each of the D products, and the norm, may be rounded another way; bit for bit without.
            size = x.abs() @ theirs.W_enc.abs() * theirs.W_dec.norm(dim=-1)
            bound = (D + 4) * torch.finfo(x.dtype).eps * size if rescaled else 0 * size
            assert ((code - known).abs() <= bound).all()
            back = bound @ (theirs.W_dec / theirs.W_dec.norm(dim=-1, keepdim=True)).abs()
            assert ((ours(x).reconstruction - theirs(x)).abs() <= 2 * back).all()
    batch = BatchTopKTrainingSAE(BatchTopKTrainingSAEConfig(d_in=D, d_sae=N, k=K))
    batch.topk_threshold.fill_(0.7)
    batch.save_inference_model(tmp_path / "batch")
    with pytest.raises(ValueError, match="k must be given for a 'jumprelu' autoencoder"):
        from_saelens(tmp_path / "batch")
    ours = from_saelens(tmp_path / "batch", k=K)
    assert ours.running.cut == pytest.approx(0.7)


@pytest.mark.extras
def test_what_saelens_does_not_have_is_refused_by_name(tmp_path):
    from kofn.integrations.saelens import from_saelens, to_saelens

    for sae, message in (
        (trained("token", learned_k=True), "k must be a fixed integer .* it is learned"),
        (trained("token", k=schedules.linear(9, 4, 5)), "k must be a fixed .* it is scheduled"),
        (nn.TopKSAE(D, N, K, selection="batch"), "has no threshold yet: train it, or call cal"),
    ):
        with pytest.raises(ValueError, match=message):
            to_saelens(sae, tmp_path)
    assert os.listdir(tmp_path) == []
    to_saelens(trained(), tmp_path)
    config = json.loads((tmp_path / "cfg.json").read_text())
    for name, value, message in (
        ("architecture", "gated", "architecture must be 'topk' or 'jumprelu'; got 'gated'"),
        ("normalize_activations", "layer_norm", "normalize_activations must be 'none'"),
        ("apply_b_dec_to_input", False, "apply_b_dec_to_input must be True .*; got False"),
    ):
        (tmp_path / "cfg.json").write_text(json.dumps({**config, name: value}))
        with pytest.raises(ValueError, match=message):
            from_saelens(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"k": 4,', "cfg.json is not valid JSON: Expecting"),
        (b"\xff\xfe\xfd", "cfg.json is not valid JSON"),
        (b"[]", "cfg.json must hold a JSON object; got list"),
    ],
)
def test_a_damaged_configuration_is_named(tmp_path, text, message):
    pytest.importorskip("safetensors")
    from kofn.integrations.saelens import from_saelens

    (tmp_path / "cfg.json").write_bytes(text)
    with pytest.raises(ValueError, match=message):
        from_saelens(tmp_path)


@pytest.mark.extras
def test_different_thresholds_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    from kofn.integrations.saelens import from_saelens, to_saelens

    to_saelens(trained(), tmp_path)
    weights = load_file(tmp_path / FILES[1])
    weights["threshold"][3] += 1
    save_file(weights, tmp_path / FILES[1])
    with pytest.raises(ValueError, match="threshold must be the same for all latents"):
        from_saelens(tmp_path)
