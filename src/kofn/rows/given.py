"""Checked arguments of a map: scores as rows, the dimension `dim` last, numbers per row.

A row has available entries (`live`: finite scores, or NaN), scores of +inf (`top`), and excluded
entries (masked, −inf, or an additive mask's finfo.min), which are never chosen. The equation
chooses k' = k − #top of the live entries; it is not needed if k' is 0 or all of them.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np

from kofn import kernels
from kofn.arrays.checks import (
    check_k,
    check_mask,
    check_per_row,
    check_real,
    check_same_kind,
    check_temperature,
)
from kofn.arrays.flow import alike
from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import (
    Array,
    adopt,
    cast,
    cast_like,
    clip,
    deleted,
    dtype_name,
    framework,
    full_like,
    is_jax,
    move_axis,
    namespace,
    of_torch,
    quiet,
)
from kofn.kernels.contract import kind_of
from kofn.links.link import Link
from kofn.solver.reductions import DENSE, Reductions

# The least and the greatest usable temperatures; see `temperature_of`. Keyed by dtype name, because
# that is fast and NumPy has no bfloat16.
TEMPERATURES = {"bfloat16": (2.0**-119, (2 - 2.0**-7) * 2.0**120)} | {
    str(info.dtype): (float(info.smallest_normal / info.eps), float(info.max * info.eps))
    for info in (np.finfo("float16"), np.finfo("float32"), np.finfo("float64"))
}

HALF_TYPES = ("float16", "bfloat16")

NUMBERS = (int, float)  # what most callers give, and cheaper to ask for than for an array

ONE: Any = object()
"""As k, the choice of one entry; of none along an empty dimension."""


class Given(NamedTuple):
    """The checked arguments of a map: scores with `dim` last, in the compute dtype.

    For kernels that take them, scores of half precision stay as they are.
    """

    scores: Array  # −inf where excluded
    k: Any  # per row, NaN where out of range; or one float for all rows
    temperature: Any  # per row, or one float for all rows
    link: Any  # an inner Link; its parameter is a number or per row
    form: Any = None  # the Form of the caller's scores

    @property
    def over(self) -> Reductions:
        """Return the reductions of the rows: dense ones, or those of segments."""
        return DENSE if type(self.form) is Form else getattr(self.form, "over", DENSE)

    @property
    def order(self) -> Any:
        """Return where the entries of segments are, if that is known; None for dense rows."""
        return None if type(self.form) is Form else getattr(self.over, "order", None)

    @property
    def is_half(self) -> bool:
        """Return whether the scores were left in half precision."""
        return dtype_name(self.scores) in HALF_TYPES

    @property
    def batch(self) -> tuple[int, ...]:
        """Return the shape of what there is per row."""
        if self.over is DENSE:
            return tuple(self.scores.shape[:-1])
        return (self.form.rows,)

    def wide(self) -> Given:
        """Return the same with the scores in the compute dtype."""
        return self._replace(scores=_wide(self.scores)) if self.is_half else self

    def per_row(self) -> Given:
        """Return the same in the compute dtype, with arrays where k or T was a number."""
        x, k, t, link, form = self.wide()
        if type(k) is not float and type(t) is not float:
            return Given(x, k, t, link, form)
        batch = self.batch
        k = full_like(x, batch, k) if type(k) is float else k
        t = full_like(x, batch, t) if type(t) is float else t
        return _alike(Given(x, k, t, link, form))


def given(
    scores: Array,
    k: Any,
    link: Link,
    temperature: Any,
    dim: int,
    mask: Any,
    *,
    for_kernels: bool = False,
    halves: bool = False,
    shards: int = 1,
) -> Given:
    """Check the arguments and bring them to a common form.

    `for_kernels` is for callers who use the kernels or `rows_of`. These detect excluded scores
    themselves, which saves a pass over the scores, and they accept numbers in place of arrays.
    `halves` is for those who also accept half precision where kernels do. Otherwise it is cast
    here, and excluded scores are detected before. `shards` is how many arrays like `scores` there
    are of each row, all of which k is for.
    """
    form = form_of(scores, dim)
    half = form.dtype_name in HALF_TYPES
    if half and halves and _is_taken(scores, form):
        x = form.last(cast(scores, form.xp.float16) if form.kind == "numpy" else scores)
    else:
        x = form.rows(scores if for_kernels and not half else without_deleted(scores))
    if mask is not None:
        x = form.xp.where(last_mask(mask, scores, form), x, -math.inf)
    batch, n = tuple(x.shape[:-1]), x.shape[-1]
    if n == 0:  # one excluded entry, so that a row has a minimum
        x = full_like(x, (*batch, 1), -math.inf)
    link, like = link.inner, form.rows(x[:0]) if half else x  # what is per row is never half
    if link.alpha is not None:
        link = _link_of(link, batch, like, form.dim)
    k = _k_of(min(1, n) if k is ONE else k, batch, n * shards, like, form.dim)
    found = Given(x, k, _temperature_of(temperature, batch, like, form.dim), link, form)
    if for_kernels and form.kind != "jax":
        return found
    return _alike(found.per_row())


def _alike(given: Given) -> Given:
    """Return the arguments spread over devices alike, as JAX's loops and branches require."""
    if not is_jax(given.scores):
        return given
    alpha = given.link.static_and_array_alpha()[1]
    x, k, t, *alphas = alike(*given[:3], *(() if alpha is None else (alpha,)))
    return Given(x, k, t, given.link.with_alpha(*alphas) if alphas else given.link, given.form)


def without_bad_temperatures(given: Given) -> Given:
    """Return `given` with a NaN in the place of the scores of rows whose temperature is NaN."""
    x, k, temperature, link, form = given
    if type(temperature) is float:
        return given
    xp = namespace(x)
    finite = ~(deleted(x) | (x == math.inf))
    bad = given.over.expand(xp.isnan(temperature)) & finite
    return Given(xp.where(bad, math.nan, x), k, temperature, link, form)


def _is_taken(scores: Array, form: Form) -> bool:
    """Return whether kernels take scores of half precision as they are."""
    if form.kind == "torch" and not of_torch("state").is_plain(scores):
        from kofn.rows import torch_halves

        return torch_halves.are_taken(scores)
    return kernels.serving_of("rows", scores, str(form.kind)) is not None


def _wide(scores: Array) -> Array:
    """Return half-precision scores in the compute dtype, −inf where they count as masked."""
    return cast(without_deleted(scores), namespace(scores).float32)


def without_deleted(scores: Array) -> Array:
    """Return `scores` with −inf where `kinds.deleted` says that they count as masked."""
    return namespace(scores).where(deleted(scores), -math.inf, scores)


def last_mask(mask: Any, scores: Array, form: Form, of: str = "scores") -> Array:
    """Return where an entry may be chosen, with the dimension of the rows last."""
    check_mask(mask, scores, of)
    mask = form.xp.broadcast_to(adopt(mask, scores), scores.shape)
    return mask if form.dim == -1 else move_axis(mask, form.dim, -1)


def weights_in_play(weights: Array, dim: int, mask: Array | None) -> tuple[Array, Any, Form]:
    """Return weights as rows, 0 where masked, the mask, and the form of the weights."""
    form = form_of(weights, dim, "weights")
    p, xp = form.rows(weights), form.xp
    if mask is None:
        return p, xp.ones_like(p, dtype=xp.bool), form
    playing = last_mask(mask, weights, form, "weights")
    return xp.where(playing, p, 0.0), playing, form


def _k_of(k: Any, batch: tuple[int, ...], n: int, x: Array, dim: int) -> Any:
    """Return k as a number, or per row: NaN where an array of k is below 0 or above n."""
    if type(k) in NUMBERS or framework(k) is None:
        return check_k(k, n)
    k = _spread(_per_row("k", k, batch, x, dim), batch, x)
    return namespace(x).where((k >= 0) & (k <= n), k, math.nan)


def temperature_of(
    temperature: Any, batch: tuple[int, ...], x: Array, as_number: bool = False
) -> Any:
    """Return T per row, limited so that T·eps is a normal number and T·F⁻¹ does not overflow.

    Or one number for all, if it is given as one and `as_number`.

    Beyond the limits (1e-31 and 4e31 in float32) the map equals the hard top-k, or k/n, exactly.
    """
    t = _temperature_of(temperature, batch, x, None)
    return full_like(x, batch, t) if type(t) is float and not as_number else t


def _temperature_of(temperature: Any, batch: tuple[int, ...], x: Array, dim: int | None) -> Any:
    floor, ceiling = TEMPERATURES[dtype_name(x)]
    if type(temperature) in NUMBERS or framework(temperature) is None:
        return min(max(check_temperature(temperature), floor), ceiling)
    xp = namespace(x)
    temperature = _per_row("temperature", temperature, batch, x, dim)
    with quiet(x):
        t = _spread(temperature, batch, x)
    # Checked before the cast: a float64 temperature that float32 rounds to 0 is valid.
    good = (temperature > 0) & (temperature < math.inf)
    return xp.where(_spread(good, batch, x) > 0, clip(t, floor, ceiling), math.nan)


def _link_of(link: Link, batch: tuple[int, ...], x: Array, dim: int) -> Link:
    if framework(link.alpha) is None:
        number = not is_jax(x) or link.alpha in (1.0, 1.5, 2.0) or _served(link)
        return link if number else link.with_alpha(full_like(x, batch, link.alpha))
    alpha = _spread(_per_row("alpha", link.alpha, batch, x, dim), batch, x)
    good = (alpha >= 1) & (alpha < math.inf)
    return link.with_alpha(namespace(x).where(good, alpha, math.nan))


def _served(link: Link) -> bool:
    """Return whether kernels on a CPU may serve a JAX array, which need α as a number.

    Then a program is compiled for each α, in a second; array code takes ten, so it takes any α.
    """
    asked = kind_of(link) is not None and kernels.wanted()
    return asked and sys.modules["jax"].default_backend() == "cpu"


def _per_row(name: str, value: Array, batch: tuple[int, ...], x: Array, dim: int | None) -> Array:
    """Return an array argument, checked to broadcast to the batch shape."""
    check_same_kind(name, value, x)
    check_real(name, value)
    return check_per_row(name, value, batch, dim)


def _spread(value: Array, batch: tuple[int, ...], x: Array) -> Array:
    # Arithmetic turns NumPy arrays without dimensions into scalars.
    value = np.asarray(value) if isinstance(value, np.generic) else value
    return namespace(x).broadcast_to(cast_like(value, x), batch)
