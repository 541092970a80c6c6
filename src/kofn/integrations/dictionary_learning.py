"""Sparse autoencoders in the files of dictionary_learning: ae.pt and config.json.

They are written from a description of that library, which is not needed for it.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any, Never

import torch

from kofn.arrays.names import unknown_keyword
from kofn.integrations import autoencoder_parts as parts
from kofn.integrations.whole_files import required, write
from kofn.nn import TopKSAE

__all__ = ["from_dictionary_learning", "to_dictionary_learning"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


CONFIG, WEIGHTS = "config.json", "ae.pt"
CLASSES = {"token": "AutoEncoderTopK", "batch": "BatchTopKSAE"}


def to_dictionary_learning(
    sae: TopKSAE,
    folder: str | os.PathLike[str],
    *,
    trainer: dict[str, Any] | None = None,
    overwrite: bool = False,
    **others: Never,
) -> None:
    """Save an autoencoder as an AutoEncoderTopK ("token") or a BatchTopKSAE ("batch").

    Args:
        trainer: more entries of the "trainer" part of config.json, such as lm_name and layer.
        overwrite: replace files that are there. Both files are written, or none.

    Raises:
        TypeError: `sae` is no TopKSAE. ValueError: k is no integer, or is scheduled or learned;
        there is no threshold yet; its codes have signs. FileExistsError: a file is there.
    """
    if others:
        raise unknown_keyword(to_dictionary_learning, others)
    weights = parts.weights_of(sae)
    k = parts.whole_k(sae) if sae.selection == "token" else _whole(sae)
    threshold = parts.threshold_of(sae) if sae.selection == "batch" else -1.0  # none
    state = {
        "k": torch.tensor(k, dtype=torch.int32, device="cpu"),
        "threshold": torch.tensor(threshold, dtype=torch.float32, device="cpu"),
        "encoder.weight": weights["W_enc"].T.contiguous(),
        "encoder.bias": weights["b_enc"],
        "decoder.weight": weights["W_dec"].T.contiguous(),
        "b_dec": weights["b_dec"],
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    sizes = {"activation_dim": sae.d_in, "dict_size": sae.d_sae, "k": k}
    described = {**(trainer or {}), "dict_class": CLASSES[sae.selection], **sizes}
    text = json.dumps({"trainer": described}, indent=2)
    write(folder, {WEIGHTS: buffer.getvalue(), CONFIG: (text + "\n").encode()}, overwrite)


def from_dictionary_learning(folder: str | os.PathLike[str], **others: Never) -> TopKSAE:
    """Load an AutoEncoderTopK or a BatchTopKSAE as a TopKSAE in eval().

    Raises:
        ValueError: another class of autoencoder; an entry is missing; a BatchTopKSAE without a
            threshold.
    """
    if others:
        raise unknown_keyword(from_dictionary_learning, others)
    config = json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
    kind = required(required(config, "trainer", CONFIG), "dict_class", CONFIG)
    if kind not in CLASSES.values():
        raise ValueError(
            f"dict_class must be one of {', '.join(map(repr, CLASSES.values()))}; got {kind!r}"
        )
    state = torch.load(Path(folder) / WEIGHTS, map_location="cpu", weights_only=True)
    tensors = {
        "W_enc": required(state, "encoder.weight", WEIGHTS).T,
        "b_enc": required(state, "encoder.bias", WEIGHTS),
        "W_dec": required(state, "decoder.weight", WEIGHTS).T,
        "b_dec": required(state, "b_dec", WEIGHTS),
    }
    k = int(required(state, "k", WEIGHTS))
    if kind == CLASSES["token"]:
        return parts.autoencoder(tensors, k, None, tensors["W_enc"].dtype)
    threshold = float(required(state, "threshold", WEIGHTS))
    if threshold < 0:
        raise ValueError(f"threshold must be ≥ 0 in {WEIGHTS}; got {threshold:g}: it was not set")
    return parts.autoencoder(tensors, k, threshold, tensors["W_enc"].dtype)


def _whole(sae: TopKSAE) -> int:
    with torch.no_grad():
        k = float(sae.current_k())
    if k != int(k):
        raise ValueError(f"k must be an integer, as a BatchTopKSAE has; got {k:g}")
    return int(k)
