"""nn.TopKSAE: what it keeps, what learns, its threshold, and what it remembers."""

import copy
import io
import itertools
import math
import pickle

import pytest
import torch
from torch.nn import functional

from kofn import nn, schedules, soft_topk
from kofn.nn.autoencoders.state import RunningCut

T, D, N, K = 12, 16, 40, 4

WAYS = {
    "token": {},
    "all": dict(gradient="all", link="laplace", temperature=0.5),
    "chosen": dict(gradient="chosen", decoder_norm="free"),
    "batch": dict(selection="batch", k=3.5),
    "annealed": dict(selection="batch", k=schedules.exponential(20, 4, steps=10)),
    "learned": dict(selection="batch", learned_k=True),
    "learned token": dict(learned_k=True, k=4.4),
}
every_way = pytest.mark.parametrize("way", WAYS)
JOINT = [way for way, changes in WAYS.items() if changes.get("selection") == "batch"]


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def autoencoder(way="token", **changes):
    return nn.TopKSAE(**{**dict(d_in=D, d_sae=N, k=K), **WAYS[way], **changes})


def positive(**changes):
    """An autoencoder all of whose scores are positive, so that k latents fire."""
    sae = autoencoder(**changes)
    torch.nn.init.constant_(sae.b_enc, 9.0)
    return sae


@every_way
def test_the_code_is_exact(way):
    sae, x = autoencoder(way), torch.randn(3, 4, D)
    reconstruction, code, scores = sae(x)
    assert torch.allclose(scores, (x - sae.b_dec) @ sae.W_enc + sae.b_enc, atol=1e-6)
    rows = scores.view(T, N) if sae.selection == "token" else scores.view(1, T * N)
    count = {"batch": 42, "annealed": 20 * T}.get(way, K if len(rows) == T else K * T)
    kept = torch.zeros_like(rows).scatter(1, rows.topk(count).indices, 1)
    assert torch.equal(code, (rows.relu() * kept).view(3, 4, N))
    decoder = sae.W_dec if way == "chosen" else functional.normalize(sae.W_dec, dim=-1)
    assert torch.allclose(reconstruction, code @ decoder + sae.b_dec, atol=1e-5)


@pytest.mark.parametrize("selection", ["token", "batch"])
def test_the_gradient_of_silent_latents_is_that_of_the_soft_weights(selection):
    """Exact gradient, plus the least kept score times that of soft top-k, at silent latents."""
    sae = autoencoder(selection=selection, temperature=0.7)
    sae.firing.silence.counts[::2] = 0  # the even latents have just fired
    scores = torch.randn(T, N, requires_grad=True)
    back = torch.randn(T, N)
    code = sae._code(scores, None)
    (found,) = torch.autograd.grad((code * back).sum(), scores)
    free = scores.detach().requires_grad_()
    rows = free if selection == "token" else free.reshape(1, -1)
    count = K if selection == "token" else K * T
    least = rows.detach().topk(count).values[:, -1:].clamp(min=0)
    weights = soft_topk(rows, count, temperature=0.7 * free.detach().std(correction=0))
    silent = torch.arange(N) % 2 == 1
    added = torch.where(silent, (least * weights).view(T, N), 0)
    kept = code.detach() > 0
    (wanted,) = torch.autograd.grad(((free * kept + added) * back).sum(), free)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert (found[:, silent] != 0).float().mean() > 0.9


def test_every_latent_gets_a_gradient_unless_asked_otherwise():
    x = torch.randn(T, D)
    for gradient, reached in (("silent", N), ("all", N), ("chosen", None)):
        sae = autoencoder(gradient=gradient)
        output = sae(x)
        (output.reconstruction - x).square().sum().backward()
        moved = int((sae.W_enc.grad != 0).any(0).sum())
        assert moved == (reached or int((output.code > 0).any(0).sum()))


def test_latents_that_fire_are_no_longer_silent():
    sae, x = autoencoder(silent_after=2), torch.randn(T, D)
    assert sae.silent_latents().all()
    for _ in range(3):
        code = sae(x).code
    fired = (code > 0).any(0)
    assert torch.equal(sae.silent_latents(), ~fired)
    sae(torch.zeros(0, D))
    assert torch.equal(sae.silent_latents(), ~fired)  # one call is not enough
    sae.eval()(x), sae.eval()(x)
    assert torch.equal(sae.silent_latents(), ~fired)


def test_statistics_count_until_they_are_reset():
    sae, x = autoencoder(), torch.randn(T, D)
    code = torch.cat([sae(x).code, sae(-x).code])
    found = sae.statistics()
    assert found["tokens"] == 2 * T
    assert torch.allclose(found["frequency"], (code > 0).float().mean(0))
    assert found["l0"] == pytest.approx((code > 0).sum().item() / (2 * T))
    assert found["dead_latents"] == (code == 0).all(0).sum()
    assert sae.statistics()["tokens"] == 0
    assert sae.statistics()["dead_latents"] == N


def test_silent_latents_come_back_to_life():
    """Half of the latents start far below the others; only the soft gradient reaches them."""
    dead = {}
    data = functional.normalize(torch.randn(N, D), dim=-1)
    for gradient in ("silent", "chosen"):
        torch.manual_seed(1)
        sae = autoencoder(gradient=gradient)
        with torch.no_grad():
            sae.b_enc[: N // 2] = -1.0
        optimizer = torch.optim.Adam(sae.parameters(), lr=1e-2)
        for _ in range(150):
            present = (torch.rand(64, N) < 0.08).float()
            x = present @ data
            optimizer.zero_grad()
            (sae(x).reconstruction - x).square().mean().backward()
            optimizer.step()
            sae.step()
        sae.statistics()
        sae((torch.rand(1000, N) < 0.08).float() @ data)
        dead[gradient] = int(sae.statistics()["dead_latents"])
    assert dead["silent"] <= 2
    assert dead["chosen"] >= 12


@pytest.mark.parametrize("way", JOINT)
def test_in_evaluation_an_input_is_coded_by_itself(way):
    sae = autoencoder(way)
    assert (sae.eval().encode(torch.randn(5, D)) == 0).all()  # nothing is known yet
    sae.train()
    for _ in range(60):
        sae(torch.randn(256, D))
    x = torch.randn(2000, D)
    code = sae.eval().encode(x)
    alone = torch.cat([sae.encode(one[None]) for one in x[:20]])
    assert torch.equal(code[:20] > 0, alone > 0)
    with torch.no_grad():
        wanted = float(sae.current_k())
    assert (code > 0).sum(-1).float().mean() == pytest.approx(wanted, rel=0.03)
    assert len((code > 0).sum(-1).unique()) > 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_calibrated_threshold_has_exactly_k(dtype):
    sae, x = autoencoder("batch", dtype=dtype), torch.randn(1000, D, dtype=dtype)
    mask = torch.arange(1000) < 400
    for live, wanted in ((mask | True, 3500), (mask, 1400)):
        sae.calibrate(x.view(10, 100, D), live.view(10, 100), batch_size=300)
        scores = sae.train()(x[live]).scores
        # bfloat16 has few values: scores that tie with the next one are left out.
        next_one = scores.flatten().sort(descending=True).values[wanted]
        fired = (sae.eval().encode(x[live]) > 0).sum()
        assert fired == (scores > next_one).sum()
        assert fired == wanted or (dtype == torch.bfloat16 and fired > 0.9 * wanted)


def test_the_cut_is_between_the_least_kept_score_and_the_next():
    sae, x = positive(way="batch"), torch.randn(T, D)
    output = sae(x)
    ordered = output.scores.flatten().sort(descending=True).values
    assert sae.running.cut == pytest.approx((ordered[41] + ordered[42]).item() / 2)
    assert torch.equal(sae.eval().encode(x) > 0, output.code > 0)


def test_a_running_cut_stays_float32_follows_and_skips_nan():
    """In bfloat16, steps of 2 % of a small change would be lost."""
    running = RunningCut().bfloat16()
    assert running.cut == math.inf
    one = torch.tensor(1.0)
    for _ in range(200):
        running.update(one, one)
    for _ in range(300):
        running.update(1.004 * one, 1.004 * one)
    running.update(torch.tensor(torch.nan), one)
    running.update(torch.tensor(torch.inf), one)
    assert running.cut == pytest.approx(1.004, abs=1e-4)
    assert running.updates == 500
    assert running.double().cut.dtype == torch.float32


@every_way
def test_padding_has_no_code_and_changes_nothing(way):
    sae, x = autoencoder(way), torch.randn(3, 4, D)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    other = copy.deepcopy(sae)
    found, compact = sae(x, mask), other(x[mask])
    assert (found.code[~mask] == 0).all()
    assert torch.allclose(found.code[mask], compact.code, atol=1e-6)
    for a, b in zip(sae.statistics().values(), other.statistics().values(), strict=True):
        assert torch.equal(a, b)
    for net, code, rows in ((sae, found.code, mask), (other, compact.code, slice(None))):
        torch.manual_seed(3)
        back = torch.randn(7, N)
        (code[rows] * back).sum().backward()
        assert net.W_enc.grad.abs().sum() > 0
    assert torch.allclose(sae.W_enc.grad, other.W_enc.grad, atol=1e-4)
    if sae.running is not None:
        assert sae.running.cut == pytest.approx(other.running.cut.item(), rel=1e-5)


def test_the_decoder_keeps_unit_rows():
    sae, free = autoencoder(), autoencoder("chosen")
    for net in (sae, free):
        with torch.no_grad():
            net.W_dec.mul_(torch.rand(N, 1) + 0.5)
    code = torch.rand(T, N)
    before = sae.decode(code)
    sae.step(), free.step()
    assert torch.allclose(sae.W_dec.norm(dim=-1), torch.ones(N))
    assert torch.allclose(sae.decode(code), before, atol=1e-5)
    assert not torch.allclose(free.W_dec.norm(dim=-1), torch.ones(N), atol=0.1)
    sae.decode(code).square().sum().backward()
    along = (sae.W_dec.grad * sae.W_dec).sum(-1)
    assert along.abs().max() < 1e-3 * sae.W_dec.grad.norm(dim=-1).max()


def test_k_follows_its_schedule():
    for way, ends in (("annealed", (20, 4)), ("token", (20, 4))):
        sae = autoencoder(way, k=schedules.exponential(20, 4, steps=10))
        torch.nn.init.constant_(sae.b_enc, 9.0)
        x = torch.randn(T, D)
        fired = []
        for _ in range(12):
            fired.append((sae(x).code > 0).sum().item() / T)
            sae.step()
        assert (fired[0], fired[-1]) == ends
        assert all(a >= b for a, b in itertools.pairwise(fired))


def test_a_learned_k_settles_where_a_latent_is_worth_its_price():
    """Each input has three of 16 orthogonal features: more latents gain nothing."""
    found = []
    for start in (1.5, 8.0):
        torch.manual_seed(0)
        sae = nn.TopKSAE(D, D, start, selection="batch", learned_k=True)
        with torch.no_grad():
            sae.W_dec.copy_(torch.eye(D)), sae.W_enc.copy_(torch.eye(D))
        optimizer = torch.optim.Adam(sae.k.parameters(), lr=0.03)
        for _ in range(150):
            x = torch.zeros(64, D).scatter(1, torch.rand(64, D).topk(3).indices, 1.0)
            x += 0.05 * torch.randn_like(x)
            optimizer.zero_grad()
            loss = (sae(x).reconstruction - x).square().sum(-1).mean() + 0.1 * sae.current_k()
            loss.backward()
            optimizer.step()
        found.append(sae.current_k().item())
    assert all(2.7 < k < 3.4 for k in found), found


@pytest.mark.parametrize("way", ["learned", "learned token"])
def test_the_gradient_of_a_learned_k_is_that_of_the_soft_weights(way):
    sae, scores = autoencoder(way, gradient="chosen"), torch.randn(T, N)
    back = torch.randn(T, N)
    (sae._code(scores, None) * back).sum().backward()
    k = sae.k.given
    rows = scores if way == "learned token" else scores.reshape(1, -1)
    times = 1 if way == "learned token" else T
    jump = rows.topk(round(k * times)).values[:, -1:]
    count = torch.tensor(k, requires_grad=True)
    temperature = 0.3 * scores.std(correction=0)
    value = (jump * soft_topk(rows, count * times, temperature=temperature)).view(T, N) * back
    (wanted,) = torch.autograd.grad(value.sum(), count)
    assert sae.k.log.grad.item() == pytest.approx(k * wanted.item(), rel=1e-3)
    assert sae.bfloat16().k.log.dtype == torch.float32


def test_the_auxiliary_loss_is_the_silent_latents_share_of_the_residual():
    sae, x = autoencoder(silent_after=1, gradient="chosen"), torch.randn(3, 4, D)
    output = sae(x)
    silent = sae.silent_latents()
    assert 0 < silent.sum() < N
    left = (x - output.reconstruction).detach().view(T, D)
    scores = output.scores.detach().view(T, N)[:, silent]
    top = scores.topk(5)
    code = torch.zeros_like(scores).scatter(1, top.indices, top.values.relu())
    decoder = functional.normalize(sae.W_dec.detach(), dim=-1)[silent]
    error = (code @ decoder - left).square().sum() / (left - left.mean(0)).square().sum()
    found = nn.auxk_loss(sae, x, output, k=5)
    assert found.item() == pytest.approx(error.item(), rel=1e-4)
    found.backward()
    assert (sae.W_dec.grad[~silent] == 0).all()
    assert (sae.W_dec.grad[silent] != 0).any()
    sae.firing.silence.counts.zero_()
    assert nn.auxk_loss(sae, x, output) == 0
    with pytest.raises(ValueError, match=r"k must be an integer in \[1, d_sae\].*got 41"):
        nn.auxk_loss(sae, x, output, k=41)


@every_way
def test_copies_and_saved_autoencoders_are_the_same(way):
    sae, x = autoencoder(way), torch.randn(T, D)
    sae(x), sae.step()
    file = io.BytesIO()
    torch.save(sae.state_dict(), file)
    file.seek(0)
    loaded = autoencoder(way)
    loaded.load_state_dict(torch.load(file), strict=True)
    for other in (loaded, copy.deepcopy(sae), pickle.loads(pickle.dumps(sae))):
        assert repr(other) == repr(sae)
        for ours, theirs in zip(sae.eval()(x), other.eval()(x), strict=True):
            assert torch.equal(ours, theirs)
    extra = {"running.cut", "running.updates"} if sae.running is not None else set()
    extra |= {"steps"} if way == "annealed" else set()
    extra |= {"k.log"} if way.startswith("learned") else set()
    assert set(sae.state_dict()) == {"W_enc", "b_enc", "W_dec", "b_dec"} | extra


@pytest.mark.parametrize(
    "way", [way if way == "learned" else pytest.param(way, marks=pytest.mark.full) for way in WAYS]
)
@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.full)])
def test_it_compiles_as_one_graph(way, training):
    torch._dynamo.reset()
    sae, x = autoencoder(way).train(training), torch.randn(T, D)
    twin = copy.deepcopy(sae)
    compiled = torch.compile(sae, fullgraph=True, backend="aot_eager")
    ours, theirs = compiled(x), twin(x)
    for found, wanted in zip(ours, theirs, strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)
    for net, output in ((sae, ours), (twin, theirs)):
        (output.reconstruction - x).square().sum().backward()
        assert net.W_enc.grad.isfinite().all()
    assert torch.allclose(sae.W_enc.grad, twin.W_enc.grad, atol=1e-4)
    assert all(torch.allclose(a, b) for a, b in zip(sae.buffers(), twin.buffers(), strict=True))
    for a, b in zip(sae.statistics().values(), twin.statistics().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.full
@pytest.mark.parametrize("way", ["token", "batch"])
def test_an_exported_autoencoder_is_right_for_other_numbers_of_inputs(way):
    sae = autoencoder(way)
    sae(torch.randn(100, D)), sae.eval()
    inputs = ({0: torch.export.Dim("inputs", min=2)},)
    program = torch.export.export(sae, (torch.randn(T, D),), dynamic_shapes=inputs)
    x = torch.randn(7, D)
    for found, wanted in zip(program.module()(x), sae(x), strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)


@every_way
def test_half_precision_and_autocast(way):
    sae, x = autoencoder(way), torch.randn(T, D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = sae(x)
    output.reconstruction.float().square().sum().backward()
    assert sae.W_enc.grad.isfinite().all()
    sae = sae.bfloat16()
    output = sae(x.bfloat16())
    assert {each.dtype for each in output} == {torch.bfloat16}
    if sae.running is not None:
        assert sae.running.cut.dtype == torch.float32


@every_way
def test_no_inputs_nan_and_all_latents_are_fine(way):
    sae = autoencoder(way)
    assert sae(torch.zeros(0, D)).code.shape == (0, N)
    x = torch.randn(T, D)
    x[3] = torch.nan
    code = sae(x).code
    if sae.selection == "token":
        assert code[torch.arange(T) != 3].isfinite().all()
    if sae.running is not None:
        assert not sae.running.cut.isnan()
    everything = nn.TopKSAE(D, N, N, selection=sae.selection)
    output = everything(torch.randn(T, D))
    assert torch.equal(output.code, output.scores.relu())
    output.reconstruction.sum().backward()
    assert everything.W_enc.grad.isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_an_input_with_nan_spoils_no_other(masked):
    sae, x = autoencoder("batch"), torch.randn(T, D)
    other = copy.deepcopy(sae)
    mask = torch.arange(T) != 5 if masked else None
    sound = torch.arange(T) != 3
    x[3, 2] = torch.nan
    rest = sound if mask is None else sound & mask
    code, wanted = sae(x, mask).code, other(x[rest]).code
    assert code[3].isnan().all()
    assert torch.equal(code[rest], wanted)
    assert sae.running.cut == other.running.cut
    for a, b in zip(sae.statistics().values(), other.statistics().values(), strict=True):
        assert torch.equal(a, b)
    sae.calibrate(x, mask), other.calibrate(x[rest])
    assert sae.running.cut == other.running.cut
    with pytest.raises(ValueError, match="x must have inputs without NaN"):
        sae.calibrate(x * torch.nan)


@pytest.mark.parametrize("selection", ["token", "batch"])
def test_a_schedule_may_return_plain_numbers(selection):
    sae = positive(selection=selection, k=lambda step: 3 if step < 1 else 99)
    for wanted in (3, N):
        assert (sae(torch.randn(T, D)).code > 0).sum() == T * wanted
        sae.step()
    assert "kofn.schedules.exponential(" in nn.TopKSAE.__doc__


def test_the_threshold_of_all_latents_is_0():
    sae, x = autoencoder("batch", k=N), torch.randn(T, D)
    sae.calibrate(x)
    assert sae.running.cut == 0
    output = sae.eval()(x)
    assert torch.equal(output.code, output.scores.relu())


def test_the_auxiliary_loss_of_one_input_is_0():
    """It has no spread to compare the error with."""
    sae, x = autoencoder(), torch.randn(D)
    sae(torch.randn(T, D))
    output = sae(x)
    found = nn.auxk_loss(sae, x, output)
    assert found == 0
    (found + output.reconstruction.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in sae.parameters())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(d_in=0), ValueError, "d_in must be an integer ≥ 1; got 0"),
        (dict(d_sae=2.5), TypeError, "d_sae must be an integer ≥ 1; got 2.5"),
        (dict(k=0), ValueError, r"k must be an integer in \[1, d_sae\] .*40\).*; got 0"),
        (dict(k=41), ValueError, "k must be an integer .* got 41"),
        (dict(k=3.5), TypeError, "k must be an integer in .*, or a schedule; got 3.5"),
        (dict(k=0.0, selection="batch"), ValueError, r"k must be a number in \(0, d_sae\]"),
        (dict(k=0.5, learned_k=True), ValueError, r"k must be a number in \[1, d_sae\]"),
        (dict(k=schedules.linear(50, 4, 9)), ValueError, r"k\(0\) must be a number in .*got 50"),
        (dict(k=schedules.linear(9, 4, 9), learned_k=True), ValueError, "k must be a number for"),
        (dict(selection="all"), ValueError, "selection must be one of 'token', 'batch'; got 'all'"),
        (dict(gradient="none"), ValueError, "gradient must be one of 'silent', .*; got 'none'"),
        (dict(decoder_norm=1), ValueError, "decoder_norm must be one of 'unit', 'free'; got 1"),
        (dict(silent_after=0), ValueError, "silent_after must be an integer ≥ 1; got 0"),
        (dict(learned_k="yes"), TypeError, "learned_k must be True or False; got 'yes'"),
        (dict(link="cauchy"), ValueError, "link must be a kofn.Link or one of .*; got 'cauchy'"),
        (dict(temperature=0), ValueError, "temperature must be .*; got 0"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        nn.TopKSAE(**{**dict(d_in=D, d_sae=N, k=K), **arguments})


def test_wrong_inputs_are_named():
    with pytest.raises(ValueError, match=r"x must have shape \[..., d_in\] \(here 16\); got \(3"):
        autoencoder()(torch.randn(3, 8))
    with pytest.raises(ValueError, match=r"mask must have the shape .* \(3, 4\); got \(3,\)"):
        autoencoder()(torch.randn(3, 4, D), torch.ones(3, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"mask must be boolean.* torch.float32"):
        autoencoder()(torch.randn(3, 4, D), torch.ones(3, 4))
    with pytest.raises(ValueError, match="calibrate is for selection='batch'; got 'token'"):
        autoencoder().calibrate(torch.randn(3, D))
    with pytest.raises(ValueError, match="x must have inputs to choose from"):
        autoencoder("batch").calibrate(torch.randn(0, D))
    with pytest.raises(ValueError, match="mask must be True for at least one input"):
        autoencoder("batch").calibrate(torch.randn(3, D), torch.zeros(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"enough inputs for one latent; got 3 for k = 0\.1"):
        autoencoder("batch", k=0.1).calibrate(torch.randn(3, D))
