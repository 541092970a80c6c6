"""Functions that torch.onnx.export cannot translate, and why: they say so where they are called."""

from __future__ import annotations

import inspect
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


SEGMENTS = tuple(name for name in WITHOUT_ONNX if "segment_" in name)


def refuse(*names: str) -> None:
    """Raise an error during torch.onnx.export that names the one of these functions that runs."""
    onnx = sys.modules.get("torch.onnx")  # by attribute, torch would be asked for it at length
    if onnx is not None and onnx.is_in_onnx_export():
        name = _running(names)
        raise ValueError(
            f"kofn.{name} cannot be exported to ONNX: {WITHOUT_ONNX[name]}; leave the function out "
            "of the exported model"
        )


def _running(names: tuple[str, ...]) -> str:
    """Return the outermost of these functions that kofn's frames are in; the first, if unknown."""
    found, frame = names[0], inspect.currentframe()
    by_function = {name.rpartition(".")[2]: name for name in names}
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("kofn."):
            found = by_function.get(frame.f_code.co_name, found)
        frame = frame.f_back
    return found
