"""Sparse autoencoders in the files of SAELens: cfg.json and sae_weights.safetensors.

It needs safetensors: `pip install "kofn[sae]"`, which also installs SAELens.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Never

import torch
from torch import Tensor

from kofn.arrays.names import unknown_keyword

try:
    from safetensors.torch import load, save
except ImportError as error:
    raise ImportError(
        'kofn.integrations.saelens needs safetensors; install it with: pip install "kofn[sae]"'
    ) from error

from kofn.integrations import autoencoder_parts as parts
from kofn.integrations.whole_files import required, write
from kofn.nn import TopKSAE

__all__ = ["from_saelens", "to_saelens"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
FORMAT = "6.0.0"  # the first SAELens version with this layout of cfg.json
PLAIN = {
    "apply_b_dec_to_input": True,
    "normalize_activations": "none",
    "reshape_activations": "none",
}
"""The preparation of inputs by kofn's autoencoders, in SAELens's words."""


def to_saelens(
    sae: TopKSAE,
    folder: str | os.PathLike[str],
    *,
    metadata: dict[str, Any] | None = None,
    overwrite: bool = False,
    **others: Never,
) -> None:
    """Save an autoencoder so that `sae_lens.SAE.load_from_disk(folder)` gives its eval() code.

    selection="batch" is saved as SAELens's "jumprelu" with one threshold for all latents, and
    "token" as "topk". Decoder rows are saved with the norms that they are used with.

    Args:
        metadata: facts on the activations, such as model_name and hook_name; values of
            JSON.
        overwrite: replace files that are there. Both files are written, or none.

    Raises:
        TypeError: `sae` is no TopKSAE. ValueError: k of selection="token" is scheduled or learned;
        there is no threshold yet; its codes have signs. FileExistsError: a file is there.
    """
    if others:
        raise unknown_keyword(to_saelens, others)
    weights = parts.weights_of(sae)
    described: dict[str, Any] = {"sae_lens_version": FORMAT, **(metadata or {})}
    if sae.selection == "batch":
        kind: dict[str, Any] = {"architecture": "jumprelu"}
        threshold = parts.threshold_of(sae)
        weights["threshold"] = weights["W_enc"].new_full((sae.d_sae,), threshold)
        described["kofn_k"] = _number(sae)
    else:
        kind = {"architecture": "topk", "k": parts.whole_k(sae)}
        kind["rescale_acts_by_decoder_norm"] = False
    dtype = str(sae.W_enc.dtype).removeprefix("torch.")
    config = {"d_in": sae.d_in, "d_sae": sae.d_sae, "dtype": dtype, "device": "cpu"}
    text = json.dumps({**kind, **config, **PLAIN, "metadata": described}, indent=2)
    write(folder, {CONFIG: (text + "\n").encode(), WEIGHTS: save(weights)}, overwrite)


def from_saelens(
    folder: str | os.PathLike[str], *, k: float | None = None, **others: Never
) -> TopKSAE:
    """Load what `to_saelens` or SAELens saved, as a TopKSAE in eval() with the same code.

    Args:
        k: of a "jumprelu" autoencoder, which SAELens does not save; used in further training. By
            default what `to_saelens` wrote.

    Raises:
        ValueError: the architecture is neither "jumprelu" nor "topk"; the thresholds of latents
            differ; inputs are changed before they are encoded; k is not known; an entry is
            missing; cfg.json is no JSON object.
    """
    if others:
        raise unknown_keyword(from_saelens, others)
    config = _config(Path(folder) / CONFIG)
    weights = load((Path(folder) / WEIGHTS).read_bytes())
    for name in parts.WEIGHTS:
        required(weights, name, WEIGHTS)
    for name, value in PLAIN.items():
        if config.get(name, value) != value:
            raise ValueError(f"{name} must be {value!r} in {CONFIG}; got {config[name]!r}")
    architecture = required(config, "architecture", CONFIG)
    if architecture == "topk":
        if config.get("rescale_acts_by_decoder_norm", False):
            weights = _folded(weights)
        return _loaded(weights, required(config, "k", CONFIG), None)
    if architecture != "jumprelu":
        raise ValueError(f"architecture must be 'topk' or 'jumprelu'; got {architecture!r}")
    k = config.get("metadata", {}).get("kofn_k") if k is None else k
    if k is None:
        raise ValueError(f"k must be given for a 'jumprelu' autoencoder: {CONFIG} holds none")
    return _loaded(weights, k, _one(required(weights, "threshold", WEIGHTS)))


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a JSON object; got {type(config).__name__}")
    return config


def _number(sae: TopKSAE) -> float:
    with torch.no_grad():
        return float(sae.current_k())


def _one(threshold: Tensor) -> float:
    least, greatest = threshold.aminmax()
    if not bool(least == greatest):
        raise ValueError(
            "threshold must be the same for all latents of a TopKSAE; got values from "
            f"{float(least):.4g} to {float(greatest):.4g}"
        )
    return float(least)


def _folded(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights that need no rescaling of the code by the norms of decoder rows."""
    norms = weights["W_dec"].norm(dim=-1)
    return {
        "W_enc": weights["W_enc"] * norms,
        "b_enc": weights["b_enc"] * norms,
        "W_dec": weights["W_dec"] / norms.clamp(min=1e-8)[:, None],
        "b_dec": weights["b_dec"],
    }


def _loaded(weights: dict[str, Tensor], k: float, threshold: float | None) -> TopKSAE:
    return parts.autoencoder(weights, k, threshold, weights["W_enc"].dtype)
