"""Names that are not there, and the nearest of those that are; test_package_names.py holds them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

KEYWORDS = {
    "temperature": "tau T temp eps epsilon sigma lam",
    "temperature=1/": "beta inverse_temperature scale",
    "dim": "axis",
    "scores": "logits x input values",
    "k": "top_k topk num_selected n num_experts_per_tok n_features_to_select k_features",
    "mask": "attn_mask where",
    "mask=~": "key_padding_mask",
    "hard": "straight_through ste",
    "rng": "generator key seed",
    "target": "labels y",
    "reduction": "size_average reduce",
    "interpolation": "method",
    "link": "kernel activation cdf",
    "normalize": "norm_topk_prob renormalize route_norm normalize_gates",
}
"""What others call arguments of ours; after a =, how ours follows from theirs."""


def plain(name: str) -> str:
    return name.lower().replace("_", "")


def meant(module: str, name: str, known: Mapping[str, str]) -> str:
    """Say that a module has no such name, and which of the known ones may be meant."""
    from difflib import get_close_matches

    close = [name] if name in known else []
    if not close and not name.startswith("_"):  # tools ask every module for __wrapped__ and more
        close = get_close_matches(plain(name), known, 1, cutoff=0.8)
    hint = f"; you may mean {module}.{known[close[0]]}" if close else ""
    return f"module {module!r} has no attribute {name!r}{hint}"


def answer_for_others(module: str, names: Iterable[str], **others: str) -> None:
    """Have a module answer for a name that it lacks, with the nearest of its own.

    `others` are words of others for some of them.
    """

    def missing(name: str) -> object:
        raise AttributeError(meant(module, name, others | {plain(own): own for own in names}))

    # Not by a `def` in the module, for which type checkers would accept every name.
    sys.modules[module].__dict__["__getattr__"] = missing


def unknown_keyword(function: Callable[..., Any], others: Iterable[str]) -> TypeError:
    """Return the error of a public function for what came in its last parameter.

    Python binds arguments before any code of a function runs, so each ends with `**others: Never`,
    which type checkers let nobody write. An empty one costs some 30 ns a call; a wrapper would cost
    seven to ten times that, and a frame in every traceback.
    """
    taken = inspect.signature(function).parameters.values()
    known = [each.name for each in taken if each.kind != each.VAR_KEYWORD]
    name = next(iter(others))
    return unexpected(function.__name__, name, own_keyword(name, known) or _nearest(name, known))


def _nearest(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    own = {plain(each): each for each in known}
    close = get_close_matches(plain(name), own, 1, cutoff=0.75)
    return f"you may mean {own[close[0]]}" if close else f"it takes {', '.join(known)}"


def own_keyword(name: str, known: Collection[str], words: Mapping[str, str] = KEYWORDS) -> str:
    """Say which of the known arguments a word of others stands for, if one does."""
    for own, others in words.items():
        target, change, _ = own.partition("=")
        if target in known and name in others.split():
            return f"kofn takes {own}{name}" if change else f"kofn calls it {own}"
    return ""


def unexpected(owner: str, name: str, hint: str) -> TypeError:
    return TypeError(f"{owner}() got an unexpected keyword argument {name!r}; {hint}")
