"""Functions that torch.onnx.export cannot translate, and why: they say so where they are called."""

from __future__ import annotations

import sys

from kofn.arrays import torch as of_torch

_PANELS = "where it integrates depends on the values of the scores"
_PLACES = "where the segments are depends on the values of an index"
_SEARCH = "its search takes as many steps as the values of the scores ask for"
_SLOPES = "it differentiates the function that it is given"

WITHOUT_ONNX = {
    "perturbed_argmax": _PANELS,
    "losses.perturbed_accuracy_loss": _PANELS,
    "soft_assignment": _SEARCH,
    "soft_assignment_prices": _SEARCH,
    "segment_entmax": _PLACES,
    "segment_hard_topk": _PLACES,
    "segment_quantile": _PLACES,
    "segment_soft_topk": _PLACES,
    "segment_soft_topk_sum": _PLACES,
    "segment_soft_topk_threshold": _PLACES,
    "segment_softmax": _PLACES,
    "segment_sparsemax": _PLACES,
    "segment_topk": _PLACES,
    "losses.segment_topk_loss": _PLACES,
    "projections.projection_box_section": "its search for a price has no translation with bounds",
    "temperature_for": "it solves some sixty maps one after another",
    "metrics.temperature_for": "it solves some sixty maps one after another",
    "metrics.order_violations": "ONNX has no running minimum",
    "KSubset.from_marginals": _SEARCH,
    "KSubset.sample": "its walk over the entries has no translation",
    "RelaxedOneHot.log_prob": "ONNX has no logarithm of the gamma function",
    "nn.TopKSAE.calibrate": "how many inputs it takes depends on the values of the mask",
    "nn.TopKSAE.initialize": "how many inputs it takes depends on the values of the mask",
    "estimators.rebar": _SLOPES,
    "estimators.perturbed": _SLOPES,
    "estimators.study": _SLOPES,
    "estimators.Study": _SLOPES,
    "streaming.*": "it reads numbers block by block",
    "distributed.*": "it sends messages whose number depends on the values of the scores",
}
"""The public names, without "kofn."; docs/arrays.md lists them. The * stands for all of a room."""


def without_onnx(name: str) -> str | None:
    """Return the key in `WITHOUT_ONNX` of a public name, or None."""
    keys = name.removeprefix("kofn."), name.removeprefix("kofn.").partition(".")[0] + ".*"
    return next((key for key in keys if key in WITHOUT_ONNX), None)


SEGMENTS = tuple(name for name in WITHOUT_ONNX if "segment_" in name)


def refuse(*names: str) -> None:
    """Raise an error during torch.onnx.export that names the function, or the group of them."""
    if "torch" in sys.modules and of_torch.state.in_onnx_export():
        raise ValueError(
            f"kofn.{' and kofn.'.join(names)} cannot be exported to ONNX: "
            f"{WITHOUT_ONNX[names[0]]}; leave the function out of the exported model"
        )
