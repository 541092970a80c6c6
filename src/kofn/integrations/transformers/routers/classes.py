"""Our router classes in the place of the stock ones, while models are made.

`apply_patches` of transformers could do this, too. But it asks every module of transformers for all
of its names, for a second per model, and lets through what a module raises then.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from transformers import modeling_utils

from kofn.integrations.transformers.routers import table

_lock = threading.Lock()
_users: Counter[str] = Counter()
"""The number of blocks, in all threads, that have a model's class replaced now."""
_of_transformers = modeling_utils.apply_patches


@contextmanager
def replaced(models: Iterable[str]) -> Iterator[None]:
    """Have the routers of these models made by our classes in the block."""
    models = tuple(models)
    with _lock:
        _users.update(models)
        for model in models:
            _put(model, table.stock_class(model), table.router_class(model))
    try:
        yield
    finally:
        with _lock:
            for model in models:
                _users[model] -= 1
                if _users[model] <= 0:
                    _restore(model)


def restore(model: str) -> None:
    """Put the stock class back, also within blocks."""
    with _lock:
        _restore(model)


def serve(models: Iterable[str]) -> None:
    """Let from_pretrained and from_config use our classes if there are models to patch."""
    if models:
        modeling_utils.apply_patches = _applied
    elif modeling_utils.apply_patches is _applied:
        modeling_utils.apply_patches = _of_transformers


@contextmanager
def _applied() -> Iterator[None]:
    """Apply what others have registered with transformers, and our classes."""
    with _of_transformers(), replaced(table.ACTIVE):
        yield


def _restore(model: str) -> None:
    del _users[model]
    _put(model, table.router_class(model), table.stock_class(model))


def _put(model: str, before: type, now: type) -> None:
    """Replace a class wherever transformers names it."""
    name = table.MODELS[model].stock
    for place, module in list(sys.modules.items()):
        # Not getattr, for which a module may import others.
        known = getattr(module, "__dict__", {})
        if place.partition(".")[0] == "transformers" and known.get(name) is before:
            setattr(module, name, now)
