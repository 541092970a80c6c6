"""Functions that torch.onnx.export cannot translate, and why: they say so where they are called."""

from __future__ import annotations

import sys

_PANELS = "where it integrates depends on the values of the scores"
_PLACES = "where the segments are depends on the values of an index"

WITHOUT_ONNX = {
    "perturbed_argmax": _PANELS,
    "losses.perturbed_accuracy_loss": _PANELS,
    "soft_assignment": "its search takes as many steps as the values of the scores ask for",
    "soft_assignment_prices": "its search takes as many steps as the values of the scores ask for",
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
}
"""The public names, without "kofn."; docs/arrays.md lists them."""


def refuse(*names: str) -> None:
    """Raise an error during torch.onnx.export that names the function, or the group of them."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.onnx.is_in_onnx_export():
        raise ValueError(
            f"kofn.{' and kofn.'.join(names)} cannot be exported to ONNX: "
            f"{WITHOUT_ONNX[names[0]]}; leave the function out of the exported model"
        )
