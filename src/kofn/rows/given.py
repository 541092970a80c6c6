"""Checked arguments of a map: scores as rows, the dimension `dim` last, numbers per row.

A row has available entries (`live`: finite scores, or NaN), scores of +inf (`top`), and excluded
entries (masked, −inf, or an additive mask's finfo.min), which are never chosen. The equation
chooses k' = k − #top of the live entries; it is not needed if k' is 0 or all of them. With costs,
k is the budget, and what +inf costs comes off it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Generic, NamedTuple

from kofn import kernels
from kofn.arrays import torch as of_torch
from kofn.arrays.checks import check_mask
from kofn.arrays.flow import alike
from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import (
    Array,
    adopt,
    cast,
    clip,
    deleted,
    dtype_name,
    framework,
    full_like,
    is_jax,
    is_torch,
    namespace,
)
from kofn.arrays.operations import without_deleted as without_deleted
from kofn.arrays.typing import ArrayT, KindT
from kofn.links.link import Link
from kofn.rows.numbers import (
    NUMBERS,
    TEMPERATURES,
    budget_of,
    costs_of,
    k_and_temperature,
    link_of,
    temperature_or_number,
)
from kofn.solver.reductions import DENSE, Reductions

HALF_TYPES = ("float16", "bfloat16")

ONE: Any = object()
"""As k, the choice of one entry; of none along an empty dimension."""


class Given(NamedTuple, Generic[KindT]):
    """The checked arguments of a map: scores with `dim` last, in the compute dtype.

    For kernels that take them, scores of half precision stay as they are.
    """

    scores: KindT  # −inf where masked; for kernels, what `deleted` finds is still there
    k: Any  # or the budget: per row, NaN where out of range; or one float for all rows
    temperature: Any  # per row, or one float for all rows
    link: Link  # an inner one; its parameter is a number or per row
    form: Any = None  # the Form, or SegmentForm, of the caller's scores
    costs: Any = None  # per entry, as given: NaN, < 0 and inf included; then all is in arrays

    @property
    def over(self) -> Reductions:
        """Return the reductions of the rows: dense ones, or the segments'."""
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

    @property
    def n(self) -> int:
        """Return the number of entries of a row; for dense rows."""
        size: int = self.form.n
        return size

    def restored(self, values: Array) -> KindT:
        """Return values of rows in the caller's form and dtype."""
        restored: KindT = self.form.restored(values)
        return restored

    def wide(self) -> Given[KindT]:
        """Return the same with the scores in the compute dtype."""
        return self._replace(scores=widened(self.scores)) if self.is_half else self

    def per_row(self) -> Given[KindT]:
        """Return the same in the compute dtype, with arrays where k or T was a number."""
        x, k, t, link, form, costs = self.wide()
        if type(k) is not float and type(t) is not float:
            return Given(x, k, t, link, form, costs)
        return _alike(_filled(Given(x, k, t, link, form, costs)))


def costed(given: Given) -> tuple[Array, Array, Array, Array]:
    """Return scores, costs, budget and temperature."""
    return given.scores, given.costs, given.k, given.temperature


def with_costs(arrays: Iterable[Array], link: Link) -> Given:
    """Return scores, costs, budget and temperature as the arguments of a map."""
    x, costs, budget, temperature = arrays
    return Given(x, budget, temperature, link, None, costs)


def given(
    scores: ArrayT,
    k: object,
    link: Link,
    temperature: object,
    dim: int,
    mask: object,
    *,
    costs: object = None,
    shards: int = 1,
) -> Given[ArrayT]:
    """Check the arguments and bring them to a common form, all in arrays of the compute dtype.

    With costs, `k` is the budget. `shards` is how many arrays like `scores` there are of each row,
    and k is for all of them.
    """
    form = form_of(scores, dim)
    x = form.rows(without_deleted(scores))
    return _alike(_filled(_checked(scores, form, x, k, link, temperature, mask, costs, shards)))


def given_for_kernels(
    scores: ArrayT, k: object, link: Link, temperature: object, dim: int, mask: object, *,
    halves: bool = False, costs: object = None,
) -> Given[ArrayT]:  # fmt: skip
    """Check the arguments for callers who use the kernels or `rows_of`.

    These detect excluded scores themselves, which saves a pass over the scores, and they accept
    numbers in place of arrays. `halves` is for those who also accept half precision where kernels
    do. Otherwise it is cast here, and excluded scores are detected before. With costs, `k` is the
    budget, and all is in arrays.
    """
    form = form_of(scores, dim)
    half = form.dtype_name in HALF_TYPES
    if half and halves and _is_taken(scores, form):
        x = form.last(cast(scores, form.xp.float16) if form.kind == "numpy" else scores)
    else:
        x = form.rows(without_deleted(scores) if half else scores)
    checked = _checked(scores, form, x, k, link, temperature, mask, costs)
    plain = form.kind != "jax" and costs is None
    return checked if plain else _alike(_filled(checked.wide()))


def _checked(
    scores: ArrayT, form: Form[ArrayT], x: ArrayT, k: Any, link: Link, temperature: Any, mask: Any,
    costs: Any = None, shards: int = 1,
) -> Given[ArrayT]:  # fmt: skip
    """Return the rows x of `scores` with their mask, k, T and alpha, numbers as they are."""
    if mask is not None:
        x = form.xp.where(last_mask(mask, scores, form), x, -math.inf)
    batch, n = tuple(x.shape[:-1]), x.shape[-1]
    if n == 0:  # one excluded entry, so that a row has a minimum; in the graph of the scores
        x = form.xp.sum(x, axis=-1)[..., None] - math.inf  # type: ignore[assignment]  # of its kind
    link, half = link.inner, form.dtype_name in HALF_TYPES
    k = min(1, n) if k is ONE else k
    only_numbers = type(k) in NUMBERS and type(temperature) in NUMBERS
    # Arrays per row get the dtype of `like`, which is then not of half precision.
    only_numbers = only_numbers and link.alpha is None and costs is None
    like = form.rows(x[:0]) if half and not only_numbers else x
    if link.alpha is not None:
        link = link_of(link, batch, like, form.dim)
    if costs is not None:
        costs, k = costs_of(costs, scores, x, form), budget_of(k, batch, like, form.dim)
        t = temperature_or_number(temperature, batch, like, form.dim, wide=half)
    else:
        numbers = batch, n * shards, like, form.dim, half
        k, t = k_and_temperature(k, temperature, *numbers)
    return Given(x, k, t, link, form, costs)


def given_again(x: ArrayT, k: Array, temperature: Array, link: Link) -> Given[ArrayT]:
    """Return rows that were checked before, in arrays of one kind and dtype, as a map takes them.

    Numbers out of range in k, T and alpha become what `given` makes of them.
    """
    xp, batch, name = namespace(x), tuple(x.shape[:-1]), dtype_name(x)
    form = Form(str(framework(x)), x.dtype, name, x.shape, -1)
    link = link.inner
    if link.alpha is not None:
        link = link_of(link, batch, x, -1)
    k = xp.where((k >= 0) & (k <= x.shape[-1]), k, math.nan)
    floor, ceiling = TEMPERATURES[name]
    good = (temperature > 0) & (temperature < math.inf)
    t = xp.where(good, clip(temperature, floor, ceiling), math.nan)
    rows = form.last(x), xp.broadcast_to(k, batch), xp.broadcast_to(t, batch)
    return _alike(Given(*rows, link, form))


def _filled(given: Given[ArrayT]) -> Given[ArrayT]:
    """Return the arguments with arrays where k or T was a number."""
    x, k, t, link, form, costs = given
    k = full_like(x, given.batch, k) if type(k) is float else k
    t = full_like(x, given.batch, t) if type(t) is float else t
    return Given(x, k, t, link, form, costs)


def _alike(given: Given[ArrayT]) -> Given[ArrayT]:
    """Return the arguments spread over devices alike, as JAX's loops and branches require."""
    if not is_jax(given.scores):
        return given
    alpha, costs = given.link.static_and_array_alpha()[1], given.costs
    costliest = None if costs is None else namespace(costs).max(costs, axis=-1)
    others = [each for each in (costliest, alpha) if each is not None]
    x: Any
    x, k, t, *others = alike(*given[:3], *others)
    link = given.link if alpha is None else given.link.with_alpha(others[-1])
    costs = None if costs is None else costs + namespace(k).zeros_like(k)[..., None]
    return Given(x, k, t, link, given.form, costs)


def without_bad_temperatures(given: Given[ArrayT]) -> Given[ArrayT]:
    """Return `given` with a NaN in the place of the scores of rows whose temperature is NaN."""
    x, _, temperature = given[:3]
    if type(temperature) is float:
        return given
    xp = namespace(x)
    finite = ~(deleted(x) | (x == math.inf))
    bad = given.over.expand(xp.isnan(temperature)) & finite
    return given._replace(scores=xp.where(bad, math.nan, x))


def _is_taken(scores: Array, form: Form) -> bool:
    """Return whether kernels take scores of half precision as they are."""
    if is_torch(scores) and not of_torch.state.is_plain(scores):
        from kofn.rows import torch_constants

        return torch_constants.are_halves_taken(scores)
    return kernels.serving_of("rows", scores, str(form.kind)) is not None


def widened(scores: ArrayT) -> ArrayT:
    """Return half-precision scores in the compute dtype, −inf where they count as masked."""
    return cast(without_deleted(scores), namespace(scores).float32)


def last_mask(mask: object, scores: Array, form: Form, of: str = "scores") -> Array:
    """Return where an entry may be chosen, with the dimension of the rows last."""
    mask = adopt(check_mask(mask, scores, of), scores)
    spread: Array = form.xp.broadcast_to(mask, scores.shape)
    return form.turned(spread)


def masked_weights(weights: ArrayT, dim: int, mask: Array | None) -> tuple[ArrayT, Form[ArrayT]]:
    """Return weights as rows, 0 where masked, and the form of the weights."""
    if mask is not None:
        p, _, form = weights_in_play(weights, dim, mask)
        return p, form
    form = form_of(weights, dim, "weights")
    return form.rows(weights), form


def weights_in_play(
    weights: ArrayT, dim: int, mask: Array | None
) -> tuple[ArrayT, Any, Form[ArrayT]]:
    """Return weights as rows, 0 where masked, the mask, and the form of the weights."""
    form = form_of(weights, dim, "weights")
    p, xp = form.rows(weights), form.xp
    if mask is None:
        return p, xp.ones_like(p, dtype=xp.bool), form
    playing = last_mask(mask, weights, form, "weights")
    return xp.where(playing, p, 0.0), playing, form
