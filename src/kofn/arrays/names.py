"""Names that are not there, and the nearest of those that are; test_package_names.py holds them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import wraps
from typing import Any

KEYWORDS = {
    "temperature": "tau T temp eps epsilon sigma lam",
    "k": "top_k topk num_selected num_experts_per_tok n_features_to_select k_features",
    "link": "kernel activation cdf",
    "score_function": "score_func scoring_func moe_router_score_function",
    "normalize": "norm_topk_prob renormalize route_norm normalize_gates",
    "balance": "load_balance_coeff bias_update_rate bias_update_speed",
    "schedule": "steps n_steps num_steps total_steps",
    "random_state": "seed rng",
    "n": "num_features n_features size length",
    "hidden_size": "dim d_model hidden_dim model_dim",
    "num_experts": "n_experts n_routed_experts num_local_experts",
    "d_in": "activation_dim input_dim d_model",
    "d_sae": "dict_size n_latents num_latents",
}
"""What others call arguments of ours."""


def plain(name: str) -> str:
    return name.lower().replace("_", "")


def meant(module: str, name: str, known: Mapping[str, str]) -> str:
    """Say that a module has no such name, and which of the known ones may be meant."""
    from difflib import get_close_matches

    # Tools ask every module for names such as __wrapped__.
    close = [name] if name in known else get_close_matches(plain(name), known, 1, cutoff=0.8)
    close = [] if name.startswith("_") else close
    hint = f"; you may mean {module}.{known[close[0]]}" if close else ""
    return f"module {module!r} has no attribute {name!r}{hint}"


def names_in(module: str) -> list[str]:
    """Return the `__all__` of a module of ours that may not be loaded, from its source."""
    import ast
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec(module)
    source = Path(found.origin).read_text(encoding="utf-8") if found and found.origin else ""
    for each in ast.parse(source).body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(each.value)
            return names
    return []


def answer_for_others(module: str, names: Iterable[str], **others: str) -> None:
    """Have a module answer for a name that it lacks, with the nearest of its own.

    `others` are words of others for some of them.
    """

    def missing(name: str) -> object:
        raise AttributeError(meant(module, name, others | {plain(own): own for own in names}))

    # Not by a `def` in the module, for which type checkers would accept every name.
    sys.modules[module].__dict__["__getattr__"] = missing


def answer_for_keywords(*classes: Any) -> None:
    """Have classes answer for keywords of others, by a wrapper of `__init__`.

    For classes that are not made in a loop: the wrapper costs some 0.3 µs. Python binds the
    arguments of a function before any code of it runs, so functions would need one, too.
    """
    for each in classes:
        _answer(each, each.__init__)


def _answer(owner: Any, make: Any) -> None:
    known = inspect.signature(make).parameters

    @wraps(make)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        if not named.keys() <= known.keys():
            _refuse(owner.__name__, named, known)
        make(self, *arguments, **named)

    owner.__init__ = __init__


def _refuse(owner: str, named: Iterable[str], known: Mapping[str, Any]) -> None:
    """Raise the TypeError of an unknown keyword, if kofn has another word for it."""
    for own, others in KEYWORDS.items():
        for name in named:
            if own in known and name not in known and name in others.split():
                raise TypeError(
                    f"{owner}() got an unexpected keyword argument {name!r}; kofn calls it {own}"
                )
