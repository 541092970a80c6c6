"""Probabilities of noisy scores as operations; their way back takes the nodes that were found."""

from __future__ import annotations

from typing import Any, NamedTuple

from kofn.arrays.kinds import Array, namespace
from kofn.arrays.typing import Tensor
from kofn.kernels.contract import on_lattice
from kofn.links.link import by_id
from kofn.maps.argmax import quadrature
from kofn.maps.argmax.nodes import Noise, most_nodes
from kofn.maps.argmax.quadrature import Measure
from kofn.operations.operation import Operation, Signature

KEPT = 512
"""Nodes are kept for the backward pass where there are no more; else they are found again."""


class Noisy(NamedTuple):
    """Scores in temperatures, the greatest 0, and their noise."""

    y: Array
    noise: Noise

    @property
    def link(self) -> Any:
        return self.noise.link


def _pack(y: Array, link: str, alpha: Any, kinks: list[float], shares: list[float]) -> Noisy:
    return Noisy(y, Noise(by_id(link, alpha), tuple(zip(kinks, shares, strict=True))))


def _unpack(rows: Noisy) -> tuple[Any, ...]:
    y, (link, kinks) = rows
    return y, link.id, link.alpha, [at for at, _ in kinks], [share for _, share in kinks]


ROWS = Signature(
    takes="y n, link, kinks float[], shares float[]",
    pack=_pack,
    unpack=_unpack,
    learnable=lambda rows: ("y",),
    tensors=lambda rows: (rows.y,),
    without_tensors=lambda rows: rows._replace(y=None),
    with_tensors=lambda rows, tensors: rows._replace(y=tensors[0]),
    kernels="noise",
)


def _evaluate(_: object, rows: Noisy) -> tuple[Array | None, ...]:
    p, measure = quadrature.evaluate(*rows)
    return p, *(measure or (None, None, None))


def _back(_: object, rows: Noisy, cotangent: Array, p: Array, *kept: Array | None) -> Array:
    known: Any = kept
    measure = None if kept[0] is None else Measure(*known)
    return quadrature.jacobian_product(rows.y, rows.noise, _of_moving(cotangent, p), measure)


def _of_moving(cotangent: Array, p: Array) -> Array:
    """Return the cotangents without entries that no noise chooses, whose weights are constant.

    They may be infinite or NaN, as an entropy's.
    """
    return namespace(p).where(p == 0, 0.0, cotangent)


EAGER = Operation(
    name="",
    takes="y n, link, kinks float[], shares float[]",
    gives="p n, at **, mass **, total **",
    of=ROWS,
    kernel=_evaluate,
    back=(
        Operation(
            name="",
            takes=(
                "cotangent n, y n, p n, at **, mass **, total **, link, kinks float[], "
                "shares float[]"
            ),
            gives="y n",
            of=ROWS,
            kernel=_back,
            plain=lambda rows, *own: _back(None, rows, *own),
        ),
    ),
)


def _room(rows: Noisy) -> int:
    most = most_nodes(*rows)
    return 0 if most > KEPT or on_lattice(rows.y, rows.link) else most


def _memory(rows: Noisy) -> Any:
    y: Any = rows.y
    return y.new_empty((3, _room(rows), *rows.y.shape[:-1], 1))


def _with_nodes(_: object, rows: Noisy) -> tuple[Array, Array]:
    """Return the probabilities, and the Measure at their nodes; unused nodes have a mass of −1."""
    p, measure = quadrature.evaluate(*rows)
    kept = _memory(rows)
    count = measure.at.shape[0] if measure and kept.shape[1] else 0
    if measure and count:
        kept[:, :count] = namespace(p).stack(tuple(measure))
    kept[:, count:] = -1
    return p, kept


def _from_nodes(_: object, rows: Noisy, cotangent: Array, p: Array, kept: Tensor) -> Array:
    count = int((kept[1].flatten(1)[:, 0] != -1).sum()) if kept.numel() else 0
    measure = Measure(*kept[:, :count]) if count else None
    if not count and not on_lattice(rows.y, rows.link):
        measure = quadrature.evaluate(*rows)[1] or None
    return quadrature.jacobian_product(rows.y, rows.noise, _of_moving(cotangent, p), measure)


COMPILED = Operation(
    name="noisy_argmax",
    takes="y n, link, kinks float[], shares float[]",
    gives="p n, kept **",
    of=ROWS,
    kernel=_with_nodes,
    back=(
        Operation(
            name="noisy_argmax_backward",
            takes="cotangent n, y n, p n, kept **, link, kinks float[], shares float[]",
            gives="y n",
            of=ROWS,
            kernel=_from_nodes,
            plain=lambda rows, *own: _from_nodes(None, rows, *own),
        ),
    ),
    fake=lambda y, *noise: (y.new_empty(y.shape), _memory(_pack(y, *noise))),
)
"""The same with one kept array, of a size that is known before the nodes are."""
