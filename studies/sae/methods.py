"""The autoencoders that are compared, all with the same start."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from kofn import schedules
from kofn.nn import SAEOutput, TopKSAE, auxk_loss
from studies.frame.run import Method

AUXK = 1 / 32  # weight of the auxiliary loss, as usual
ANNEALED = 0.6  # share of the steps in which an annealed k falls


class Sizes(NamedTuple):
    d_in: int
    d_sae: int
    k: int
    steps: int


class Kofn(nn.Module):
    """A TopKSAE, with the auxiliary loss if that has a weight.

    If it is `initialized`, it starts from the mean of a sample of the inputs.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        k: Any = None,
        auxk: float = 0.0,
        half: bool = False,
        initialized: bool = False,
        **how: Any,
    ) -> None:
        super().__init__()
        self.initialized = initialized
        self.auxk, self.dtype = auxk, torch.bfloat16 if half else torch.float32
        k = sizes.k if k is None else k
        # In float32 first, so that all methods of a seed start from the same weights.
        self.sae = TopKSAE(sizes.d_in, sizes.d_sae, k, **how).to(self.dtype)

    def loss(self, x: Tensor) -> Tensor:
        """Return the squared error over the variance, with what is added to it."""
        x = x.to(self.dtype)
        output = self.sae(x)
        self.watch(output)
        loss = unexplained(x, output.reconstruction)
        return loss + self.auxk * auxk_loss(self.sae, x, output) if self.auxk else loss

    def watch(self, output: SAEOutput) -> None:
        """See the output of a training step."""

    def encode(self, x: Tensor) -> Tensor:
        return self.sae.encode(x.to(self.dtype))

    def decode(self, code: Tensor) -> Tensor:
        return self.sae.decode(code).float()

    def directions(self) -> Tensor:
        return self.sae.decoder().float()

    def step(self) -> None:
        self.sae.step()


class Learned(Kofn):
    """A TopKSAE whose k is learned, with a penalty on k that is scaled until k is its target.

    The slope of the penalty rises with the cube of k, too, so that k does not swing.
    """

    RATE = 0.05
    weight: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes, selection="batch", learned_k=True)
        self.target = sizes.k
        self.register_buffer("weight", torch.tensor(0.03))

    def excess(self) -> Tensor:
        """Return k over its target."""
        return (self.sae.current_k() / self.target).squeeze()

    def loss(self, x: Tensor) -> Tensor:
        return super().loss(x) + self.weight * self.excess() ** 4 / 4

    @torch.no_grad()
    def step(self) -> None:
        super().step()
        self.weight *= self.excess() ** self.RATE


class MeanOfMinima(Kofn):
    """BatchTopK whose threshold is, as in other libraries, a mean of the smallest kept scores.

    The mean has the dtype of the parameters, and starts half way through the training.
    """

    RATE = 1e-3
    threshold: Tensor
    calls: Tensor

    def __init__(self, sizes: Sizes, **how: Any) -> None:
        super().__init__(sizes, selection="batch", gradient="chosen", **how)
        self.start = sizes.steps // 2
        self.register_buffer("threshold", torch.full((), -1.0, dtype=self.dtype))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def watch(self, output: SAEOutput) -> None:
        self.calls += 1
        if self.calls > self.start:
            least = output.code.masked_fill(output.code == 0, torch.inf).min()
            mean = (1 - self.RATE) * self.threshold + self.RATE * least
            self.threshold.copy_(torch.where(self.threshold < 0, least, mean))

    def encode(self, x: Tensor) -> Tensor:
        scores = self.sae(x.to(self.dtype)).scores
        return scores.relu() * (scores > self.threshold)


class Penalized(nn.Module):
    """An autoencoder whose penalty is scaled until an input has k latents."""

    FACTOR = 1.01
    initialized = False
    weight: Tensor

    def __init__(self, sizes: Sizes, weight: float) -> None:
        super().__init__()
        self.sae = TopKSAE(sizes.d_in, sizes.d_sae, sizes.k)  # its parameters alone
        self.k, self.l0 = sizes.k, 0.0
        self.register_buffer("weight", torch.tensor(weight))

    def directions(self) -> Tensor:
        return functional.normalize(self.sae.W_dec, dim=-1)

    def decode(self, code: Tensor) -> Tensor:
        return code @ self.directions() + self.sae.b_dec

    def projected(self, x: Tensor) -> Tensor:
        return (x - self.sae.b_dec) @ self.sae.W_enc

    @torch.no_grad()
    def step(self) -> None:
        self.sae.W_dec.copy_(self.directions())
        self.weight *= self.FACTOR if self.l0 > self.k else 1 / self.FACTOR


class JumpReLU(Penalized):
    """Scores above a learned threshold per latent, with a penalty on how many there are.

    The gradient for a threshold comes from scores within half a bandwidth of it.
    """

    BANDWIDTH = 0.1

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes, 0.01)
        self.threshold = nn.Parameter(torch.full((sizes.d_sae,), 0.1))

    def encode(self, x: Tensor) -> Tensor:
        scores = self.projected(x) + self.sae.b_enc
        return scores.relu() * (scores > self.threshold)

    def loss(self, x: Tensor) -> Tensor:
        scores = self.projected(x) + self.sae.b_enc
        kept = (scores > self.threshold).float().detach()
        near = ((scores - self.threshold).abs() < self.BANDWIDTH / 2).float().detach()
        # 0 in the value; the slope that a step has, in the mean over the bandwidth.
        jump = -near / self.BANDWIDTH * (self.threshold - self.threshold.detach())
        code = scores.relu() * kept + self.threshold.detach() * jump
        self.l0 = kept.sum(-1).mean().item()
        latents = (kept + jump).sum(-1).mean() / self.k
        return unexplained(x, self.decode(code)) + self.weight * latents

    @torch.no_grad()
    def step(self) -> None:
        super().step()
        self.threshold.clamp_(min=0)


class Gated(Penalized):
    """A gate says which latents are on, a second path how large they are, with an L1 penalty."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes, 0.01)
        self.log_scale = nn.Parameter(torch.zeros(sizes.d_sae))
        self.b_size = nn.Parameter(torch.zeros(sizes.d_sae))

    def _both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        plain = self.projected(x)
        return plain + self.sae.b_enc, (plain * self.log_scale.exp() + self.b_size).relu()

    def encode(self, x: Tensor) -> Tensor:
        gates, sizes = self._both(x)
        return sizes * (gates > 0)

    def loss(self, x: Tensor) -> Tensor:
        gates, sizes = self._both(x)
        on = gates.relu()
        self.l0 = (gates > 0).float().sum(-1).mean().item()
        by_gates = on @ self.directions().detach() + self.sae.b_dec.detach()
        error = unexplained(x, self.decode(sizes * (gates > 0))) + unexplained(x, by_gates)
        return error + self.weight * on.sum(-1).mean()


def unexplained(x: Tensor, reconstruction: Tensor) -> Tensor:
    """Return the squared error over the variance of the inputs."""
    x = x.float()
    return (reconstruction.float() - x).square().mean() / (x - x.mean(0)).square().mean()


def _annealed(sizes: Sizes) -> Kofn:
    falls = schedules.exponential(4 * sizes.k, sizes.k, max(1, round(ANNEALED * sizes.steps)))
    return Kofn(sizes, k=falls, selection="batch")


METHODS = {
    "kofn-token": Method(Kofn, "#0072B2"),
    "kofn-token-all": Method(partial(Kofn, gradient="all"), "#0072B2", ":"),
    "kofn-batch": Method(partial(Kofn, selection="batch"), "#56B4E9"),
    "kofn-batch-annealed": Method(_annealed, "#56B4E9", "--"),
    "kofn-batch-learned": Method(Learned, "#56B4E9", "-."),
    "kofn-token-signed": Method(partial(Kofn, signed=True), "#0072B2", "--"),
    "kofn-batch-signed": Method(partial(Kofn, selection="batch", signed=True), "#009E73", "--"),
    "abstopk": Method(partial(Kofn, gradient="chosen", signed=True), "#D55E00", "--"),
    "topk": Method(partial(Kofn, gradient="chosen"), "#D55E00", ":"),
    "topk-auxk": Method(partial(Kofn, gradient="chosen", auxk=AUXK), "#D55E00"),
    "batchtopk": Method(MeanOfMinima, "#E69F00", ":"),
    "batchtopk-auxk": Method(partial(MeanOfMinima, auxk=AUXK), "#E69F00"),
    "jumprelu": Method(JumpReLU, "#009E73"),
    "gated": Method(Gated, "#CC79A7"),
    "kofn-batch-bf16": Method(partial(Kofn, selection="batch", half=True), "#56B4E9", ":"),
    "batchtopk-bf16": Method(partial(MeanOfMinima, half=True), "#999999", ":"),
    "kofn-token-initialized": Method(partial(Kofn, initialized=True), "#009E73"),
    "topk-initialized": Method(partial(Kofn, gradient="chosen", initialized=True), "#009E73", ":"),
}
