"""Losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

import kofn
from calls.call import Call
from calls.data import (
    ALPHA,
    FLAT,
    LOSS,
    OF_ROWS,
    OF_SEGMENTS,
    PER_CLASS,
    SETS,
    SOFT,
    TARGET,
    TEACHER,
    UNSMOOTHED,
    X,
)
from kofn import losses


def of_losses() -> Iterator[Call]:
    soft = {"scores": X, "target": TARGET, **OF_ROWS, "reduction": "none"}
    for room in ("kofn", "kofn.losses"):
        yield Call(f"{room}.fenchel_young_loss", kofn.fenchel_young_loss, soft, SOFT)
    own: dict[str, tuple[Mapping, tuple]] = {
        "softmax_loss": (LOSS, SOFT),
        "sparsemax_loss": (LOSS, SOFT),
        "entmax_loss": ({**LOSS, "alpha": ALPHA}, (*SOFT, "alpha")),
        "topk_loss": (LOSS, SOFT),
        "sparse_softmax_loss": ({**LOSS, "k": 3}, SOFT),
        "topk_cross_entropy": ({**LOSS, "k": 2}, SOFT),
        "epsilon_cross_entropy": (LOSS, SOFT),
        "accuracy_loss": (UNSMOOTHED, SOFT),
        "perturbed_accuracy_loss": (UNSMOOTHED, SOFT),
    }
    for name, (given, learned) in own.items():
        function = getattr(losses, name)
        yield Call(f"kofn.losses.{name}", function, given, learned)
        soft = {**given, "target": TARGET, "reduction": "mean"}
        yield Call(f"kofn.losses.{name}[soft]", function, soft, learned, together=("mean",))
    function = losses.sparse_softmax_loss
    for example, sets in SETS.items():
        given = {**UNSMOOTHED, **sets, "outside": "kept"}
        yield Call(f"kofn.losses.sparse_softmax_loss[{example}]", function, given, SOFT)
    function = losses.topk_kl
    for example, way in (("topk_kl", {}), ("topk_kl[reverse]", {"reverse": True})):
        given = {**TEACHER, **OF_ROWS, **way, "reduction": "none"}
        yield Call(f"kofn.losses.{example}", function, given, SOFT)
    for name in ("am_softmax", "arcface"):
        given = {"cosines": X / 3, **{key: LOSS[key] for key in LOSS if key != "scores"}}
        given, learned = {**given, "margin": PER_CLASS / 4}, ("cosines", "temperature", "margin")
        yield Call(f"kofn.losses.{name}", getattr(losses, name), given, learned)
    flat = {"scores": FLAT, "target": (FLAT > 0.5).astype(float), **OF_SEGMENTS}
    given = {**flat, "reduction": "none"}
    function = losses.segment_topk_loss
    yield Call("kofn.losses.segment_topk_loss", function, given, SOFT, together=("segments",))
    chosen = {"scores": FLAT, "target": np.array([2, 5, 7]), **OF_SEGMENTS, "reduction": "none"}
    given = {**chosen, "k": 3, "p": 0.9, "outside": "kept"}
    name, function = "segment_sparse_softmax_loss", losses.segment_sparse_softmax_loss
    yield Call(f"kofn.losses.{name}", function, given, SOFT, together=("segments",))
