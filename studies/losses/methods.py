"""The losses, and the weights that a network trained by each is read by."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import linear, normalize

from kofn import entmax, losses, perturbed_argmax, softmax, sparse_softmax, sparsemax
from kofn import taylor_softmax as taylor
from studies.frame.run import Method

SCALE = 30
"""Of the cosines of AM-softmax; the inverse of its usual temperature."""


class Way(NamedTuple):
    """A loss of scores and labels, and its weights."""

    loss: Callable[[Tensor, Tensor], Tensor]
    weights: Callable[[Tensor], Tensor]
    cosines: bool = False
    """Whether the scores are cosines of features and classes, without a bias."""

    def scores(self, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the scores of features by the last layer of a network."""
        if self.cosines:
            return linear(normalize(features), normalize(weight))
        return linear(features, weight, bias)


def with_margin(cosines: Tensor, labels: Tensor) -> Tensor:
    return losses.am_softmax(cosines, labels)[0]


def taylor_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return −log of `taylor_softmax`, whose weights are never 0."""
    return -taylor(scores).gather(-1, labels[:, None]).log().mean()


def sparse(**kept: Any) -> Way:
    """Return sparse softmax, which keeps k classes, or p of their weight."""
    return Way(partial(losses.sparse_softmax_loss, **kept), partial(sparse_softmax, **kept))


CE = Way(losses.softmax_loss, softmax)
METHODS = {
    "cross-entropy": Method(lambda: CE, "#222222"),
    "accuracy": Method(lambda: Way(losses.accuracy_loss, softmax), "#D55E00"),
    "exact": Method(lambda: Way(losses.perturbed_accuracy_loss, perturbed_argmax), "#E69F00"),
    "sparse-2": Method(lambda: sparse(k=2), "#0072B2", "--"),
    "sparse-3": Method(lambda: sparse(k=3), "#0072B2"),
    "sparse-p": Method(lambda: sparse(p=0.9), "#56B4E9"),
    "taylor": Method(lambda: Way(taylor_loss, taylor), "#888888"),
    "sparsemax": Method(lambda: Way(losses.sparsemax_loss, sparsemax), "#009E73"),
    "entmax": Method(lambda: Way(losses.entmax_loss, entmax), "#009E73", "--"),
    "am-softmax": Method(
        lambda: Way(with_margin, partial(softmax, temperature=1 / SCALE), cosines=True), "#CC79A7"
    ),
    "epsilon": Method(lambda: Way(losses.epsilon_cross_entropy, sparsemax), "#D55E00", "--"),
}
