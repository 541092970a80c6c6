"""A sparse autoencoder that keeps the k largest latents, and whose silent latents learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from kofn.arrays.typing import LinkName
from kofn.links import Link
from kofn.nn.autoencoders.code import code_above, code_of, live_tokens, without_nan
from kofn.nn.autoencoders.sample import Sampled
from kofn.nn.autoencoders.settings import Settings
from kofn.nn.routing.state import is_recomputing


class SAEOutput(NamedTuple):
    """The answer of `TopKSAE` for inputs [..., d_in]."""

    reconstruction: Tensor
    """[..., d_in]."""
    code: Tensor
    """[..., d_sae], 0 for all but about k latents of an input; ≥ 0, unless codes have signs."""
    scores: Tensor
    """[..., d_sae]: the pre-activations, from which the largest are kept."""


class TopKSAE(Sampled):
    """Return (reconstruction, code, scores) of inputs: a code with about k of d_sae latents.

    scores = (x − b_dec)·W_enc + b_enc; code = relu(scores) at the largest scores, 0 elsewhere;
    reconstruction = code·W_dec + b_dec. The code is exact, but latents that are silent get a
    gradient, too: they learn to fire without a loss that looks at the residual.

    Args:
        d_in, d_sae: sizes of inputs and code, integers ≥ 1.
        k: latents per input, in [1, d_sae]. An integer for selection="token"; for "batch" a number
            > 0, the mean over the inputs. Or a function of the step, such as
            `kofn.schedules.exponential(64, 8, steps=1000)`; `step()` counts the steps, and
            "token" rounds its value.
        selection: "token", the k largest scores of each input; "batch", the k·T largest scores of
            the T inputs of a call, so that some inputs have more latents than others. In eval(),
            "batch" keeps the scores above a running mean of the threshold, each input by itself.
        gradient: which entries that are not kept get a gradient in training. "silent", for
        latents that did not fire in the last `silent_after` training calls; "all"; "chosen",
            none, as usual. "all" leaves fewer dead latents, but the reconstruction is worse.
        silent_after: an integer ≥ 1.
        link, temperature: of the soft top-k weights whose gradient that is; the temperature, a
            number or a function of the step, is in units of the standard deviation of the scores.
        learned_k: k is learned, starting from the number given. Add a price times `current_k()` to
            the loss, or k grows. selection="token" rounds it.
        signed: the k scores of largest magnitude are kept, with their signs (AbsTopK), so that one
            latent can stand for two opposite directions. The code is not relu of them.
        decoder_norm: "unit", the rows of W_dec are divided by their norms wherever they are used,
            and `step()` divides the parameter; "free", they are taken as they are.
        device, dtype: of the parameters. Thresholds and a learned k are float32 in any case.

    Inputs:
        x: [..., d_in]. mask: boolean of shape x.shape[:-1], False for padding, whose code is 0.
            An input with NaN has a code of NaN, and the others are coded without it.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range.

    Source: Gao et al., "Scaling and Evaluating Sparse Autoencoders" (2024), for the layer; Bussmann
    et al., "BatchTopK Sparse Autoencoders" (2024); Zhu et al., "AbsTopK: Rethinking Sparse
    Autoencoders For Bidirectional Features" (2025), for signed codes.

    Example:
        >>> import torch
        >>> from kofn import nn
        >>> sae = nn.TopKSAE(16, 64, 4)
        >>> reconstruction, code, scores = sae(torch.randn(10, 16))
        >>> reconstruction.shape, code.shape, int((code > 0).sum(-1).max())
        (torch.Size([10, 16]), torch.Size([10, 64]), 4)
        >>> sae
        TopKSAE(16 to 64, k=4, selection='token', gradient='silent', decoder_norm='unit')
    """

    def __init__(
        self,
        d_in: int,
        d_sae: int,
        k: float | Callable[[Any], Any],
        *,
        selection: Literal["token", "batch"] = "token",
        gradient: Literal["silent", "all", "chosen"] = "silent",
        silent_after: int = 2,
        link: LinkName | Link = "logistic",
        temperature: float | Callable[[Any], Any] = 0.3,
        learned_k: bool = False,
        decoder_norm: Literal["unit", "free"] = "unit",
        signed: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        ways = selection, gradient, silent_after, link, temperature, decoder_norm, signed
        settings = Settings(*ways)
        super().__init__(d_in, d_sae, k, settings, learned_k, device, dtype)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> SAEOutput:
        """Return reconstruction, code and scores; the docstring of the class describes them."""
        scores, rows, live = self._scores(x, mask)
        code = self._code(rows, live).view_as(scores)
        return SAEOutput(self.decode(code), code, scores)

    def encode(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the code [..., d_sae] alone."""
        scores, rows, live = self._scores(x, mask)
        return self._code(rows, live).view_as(scores)

    def _code(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if self.running is not None and not self.training:
            return code_above(scores, self.running.cut, mask, self.signed)
        mask = mask if self.running is None else without_nan(scores, mask)
        coded = code_of(scores, self._coding(), mask)
        if self.training and not is_recomputing():
            if self.running is not None and coded.greatest is not None:
                self.running.update(coded.least, coded.greatest)
            self.firing.add(coded.code.detach(), live_tokens(scores, mask))
        return coded.code
