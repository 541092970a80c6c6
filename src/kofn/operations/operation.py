"""A declaration of an operation on rows: what it takes and gives, its kernel, and its way back.

An operation maps rows of scores to numbers per entry or per row: weights, a threshold, a loss. It
is declared once, as data, and every framework is served from the declaration.

A call goes down these layers, and its answer comes back the same way:

    maps, losses, …   check the arguments (`rows/given.py`), and name an operation
    adapters/route    decides what computes it: a kernel, an operator, a primitive, array code
    adapters/         torch/: an autograd function, an operator with shapes, derivative, sharding
                      jax/: a primitive with its rules; shards/: rows in several processes
                      segments.py: a loop over blocks; array_code.py: θ first, then the formula
    operations/       the declarations: which kernels, which formulas, what the way back keeps
    formulas/         array code at a known θ, with all derivatives: it defines the answer
    kernels/, solver/ compiled code; θ in array code

The contract:

- The array code, `reference`, defines the answer, and it is differentiable to any order. A kernel
  computes the same numbers, sooner.
- `reference` takes `theta`, and solves nothing. An adapter finds θ.
- No adapter knows an operation by its name, but where rows need another operation: segments, costs
  in several processes, choices on a mesh. No declaration knows how a framework differentiates.
- The first answer is the caller's, and alone has a derivative. Autograd keeps what the ways back
  take, and nothing else: this is all the memory that a call holds until then.
- First derivatives are ways back, kernels mostly. A way back is differentiated as
  `reference` at the kept θ.
- A kernel that gives up on a row says so, and array code does this row.
- No answer shares memory with an argument or another answer, and every entry of it is written.
- The name of an operation and its line of arguments are a torch operator. Saved programs know it by
  these, so they do not change.

Why not otherwise:

- Not a function per operation and framework: 22 operations were 150 registrations by hand, and each
  fact about shapes stood in eight places. What was missing in one of them was seen by nobody.
- Not second derivatives by differentiating a way back: it takes θ as a constant, so they would be
  wrong, and no error would say so.
- Not θ found by the formulas: they would stand above what finds θ for each framework, and repair,
  which is below, could not call them. On JAX, θ and the formula are one program all the same: the
  adapter compiles the function that does both.
- Not kernels behind the array code, as its fast path: θ alone is what they would share. A kernel
  gives weights and θ in the same pass.
- Not a class per operation: an adapter asks for fields, and a compiler traces the code that asks.

Arguments and answers are written as one line, such as "x n, theta 2, k #, link": the name and the
kind of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    RowsT = WithDefault("RowsT", default=Any)
else:
    RowsT = TypeVar("RowsT")

from kofn.arrays.typing import Array

ENTRY = "n"  # a number per entry, of the dtype of the scores
WIDE = "N"  # a number per entry, never of half precision
ROW = "r"  # a number per row, never of half precision
PAIR = "2"  # two numbers per row, (2, …), never of half precision
THREE = "3"
NUMBER = "#"  # a number per row, or one for all rows
OPTIONAL = "r?"  # a number per row, or nothing
LAYERS = "**"  # numbers per row in two dimensions that stand before the dimensions of the rows
INDICES = "i"  # k places in each row
ARRAYS = (ENTRY, WIDE, ROW, PAIR, THREE, LAYERS, INDICES)
"""The kinds of arguments that are always arrays. Any other kind is the type of a setting, as torch
writes it."""

STANDS_FOR = {"link": "link str, alpha float?"}
"""The arguments for which one is short."""


class Argument(NamedTuple):
    name: str
    kind: str
    given_if: tuple[str, ...] = ()  # empty unless one of these arguments is there, or set


def arguments_of(text: str) -> tuple[Argument, ...]:
    """Return the arguments, or answers, of a line; "… if a b" says when an answer has entries."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    parts = [each for part in parts for each in STANDS_FOR.get(part, part).split(", ")]
    return tuple(_argument(part) for part in parts)


def _argument(text: str) -> Argument:
    said, _, condition = text.partition(" if ")
    name, _, kind = said.partition(" ")
    return Argument(name, kind, tuple(condition.split()))


def _batch(x: Array, *_: object) -> Sequence[int]:
    return x.shape[:-1]


def _no_array_code(*_: object, **__: object) -> Any:
    raise NotImplementedError("a way back is differentiated as its operation is, by array code")


class Signature(NamedTuple, Generic[RowsT]):
    """The arguments that are the rows of an operation, and how kernels for them are found."""

    takes: str
    pack: Callable[..., RowsT]  # makes the rows from the arguments of a torch operator
    unpack: Callable[[RowsT], tuple[object, ...]]  # makes these arguments from the rows
    learnable: Callable[[RowsT], tuple[str, ...]]  # names of the tensors of rows, the scores first
    tensors: Callable[[RowsT], Sequence[Any]]  # these tensors
    without_tensors: Callable[[RowsT], RowsT]  # the rows with nothing in the place of these tensors
    with_tensors: Callable[[RowsT, Sequence[Any]], RowsT]  # the rows with others in their place
    kernels: str  # the field of kernels.Backend that serves them
    serves: Callable[..., Any] | None = None
    """(x, link, framework, offered) -> kernels, where it takes more than their list of links."""
    batch: Callable[..., Sequence[int]] = _batch
    """The shape of a number per row, of the same arguments as for `pack`."""


@dataclass(eq=False, repr=False)
class Operation:
    """One operation; `kernel(backend, rows, *arrays, *settings)` gives its answers."""

    name: str
    """The torch operator's name; "" for a few array operations, which compilers trace."""
    takes: str
    gives: str
    of: Signature
    kernel: Callable[..., Any]
    reference: Callable[..., Any] = _no_array_code
    """The array code that defines the answer: reference(rows, *arrays, over=, theta=, …), for the
    `Rows` that `rows/settled.py` makes of the arguments. It is given θ and solves nothing.
    """
    at_theta: bool = True
    """Whether `reference` takes θ."""
    without_theta: str = ""
    """The setting with which `reference` takes no θ."""
    plain: Callable[..., Any] | None = None
    """Array code in the place of `reference`, which gets the rows before they are settled."""
    fixed: Callable[..., Any] | None = None
    """The answer of rows with costs that are not settled, if `reference` has the derivatives alone:
    a hard choice.
    """
    back: tuple[Operation, ...] = ()
    """The ways back. They take the arguments and answers of this, by its names, "cotangent", and
    "of_x", which says whether the cotangent of x is wanted; they give cotangents by the names of
    the arguments, "k+t" for two in a pair.
    """
    pullback: Callable[..., Any] | None = None
    """The cotangents of x, k and t by formulas, for rows in several processes: pullback(cotangent,
    rows, *arrays, theta=, over=, …), with the kept arrays by name. One of them may be a function
    that returns it.
    """
    tangents: Callable[[], tuple[Any, ...]] | None = None
    """Returns formulas of tangents of x, k and t, of which some may be None: the answer's tangent,
    (tangents, rows, θ, over), and how the cotangents change, (cotangent, tangents, …). For JAX.

    An answer per row has None for the first, as `pullback` tells it; a third formula takes the
    place of `pullback`. Without `xla` JAX has a primitive of it, too, around θ by a kernel.
    """
    sloped: Callable[..., Any] | None = None
    """sloped(rows, *arrays, theta=, over=) is (answer of `reference`, θ, kept arrays), by one
    round of sums; without `at_theta`, `theta` is None.
    """
    keeps: tuple[str, ...] = ()
    """The names of what `sloped` keeps per row; in rows that are "constant" the answer is one. An
    operation that takes "slopes" keeps it if t is learned.
    """
    offered: str = "SERVED"
    """The attribute of the kernels that has the links served, or is None."""
    constant: tuple[str, ...] = ()
    """Tensors without a cotangent in `back`: where one of them is learned, array code serves."""
    onward: Operation | None = None
    """The way back of the second answer, in plain operations: a loss has p − t, from which alone
    its second derivatives follow. Then eager torch keeps no scores, if nothing else is learned.
    """
    goes_onward: Callable[..., bool] = lambda rows, *arrays: True
    """goes_onward(rows, *arrays) says whether `onward` serves these."""
    keeps_scores: bool = True
    """False if the ways back, which are plain, do without the scores."""
    elementwise: bool = False
    """Whether the kernel is array code that expands numbers per row by `rows.over`: it takes
    segments as they are, which others get block by block, as dense rows.
    """
    prepared: Callable[..., Any] = lambda rows, *arrays: rows
    """prepared(rows, *arrays) is the rows that array code takes: a loss takes its k from a target.
    """
    xla: Callable[..., Sequence[str]] | None = None
    """xla(*settings) names the calls of kernels/cpu/xla that give the answers to a JAX program, in
    turn; with `onward`, the last argument is whether the target is one label per row. JAX has no
    primitive of an operation without it or `tangents`.
    """
    lost: str = ""
    """Of a way back, an answer per row that is NaN where such a call leaves a row to array code."""
    compared: Callable[..., tuple[Any, Any]] | None = None
    """The answer and the second answer by array code: compared(rows, *arrays, *settings, over=,
    theta=).
    """
    moves_as: Operation | None = None
    """The operation whose derivatives the answer has; with `onward`, the second answer. For JAX."""
    each_alpha: str = ""
    """The same for rows with an alpha each, on torch: its name in adapters/torch/each_alpha.py."""
    closed: Operation | None = None
    """The same by array code with a way back in closed form, for eager torch without kernels."""
    ready: str = ""
    """The function of kernels/cpu/ready.py that makes its kernel for calls like earlier ones."""
    functions: str = ""
    """The public functions that it answers, for the table of what has kernels."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Where kernels do not serve it, "JAX" or "segments", and why."""
    fake: Callable[..., Any] | None = None
    """The answers as memory without entries, where their kinds do not say it."""

    # What follows from these, found once: compilers trace the code that asks for it.
    arguments: tuple[Argument, ...] = field(init=False)
    answers: tuple[Argument, ...] = field(init=False)
    own: tuple[str, ...] = field(init=False)
    """The names of the kernel's arguments but the rows: arrays, then settings."""
    arrays: tuple[str, ...] = field(init=False)
    settings: tuple[str, ...] = field(init=False)
    has_slopes: bool = field(init=False)
    """Whether the last setting says if anything is learned."""
    asks: tuple[str, ...] = field(init=False)
    """The tensors of the rows for which settings "of_…" before "slopes" say if they are learned."""
    told: tuple[str, ...] = field(init=False)
    """The settings that say which tensors are learned; array code needs none of them."""
    has_link: bool = field(init=False)
    cotangents: tuple[tuple[str, ...], ...] = field(init=False)
    """Of each answer of a way back, the arguments whose cotangents it has."""
    learned_arrays: tuple[str, ...] = field(init=False)
    """The arrays other than the rows that have a cotangent."""
    kept: tuple[int, ...] = field(init=False)
    """The places of the answers that the way back takes."""
    names_kept: tuple[str, ...] = field(init=False)
    is_direct: bool = field(init=False)
    """Whether the way back takes the cotangent and the kept answers, and nothing else."""

    def __post_init__(self) -> None:
        self.arguments, self.answers = arguments_of(self.takes), arguments_of(self.gives)
        rows = {argument.name for argument in arguments_of(self.of.takes)}
        others = [each for each in self.arguments if each.name not in rows]
        self.arrays = tuple(each.name for each in others if each.kind in ARRAYS)
        self.settings = tuple(each.name for each in others if each.kind not in ARRAYS)
        self.own = self.arrays + self.settings
        self.has_slopes = "slopes" in self.settings
        asked_of = [name for name in self.settings if name.startswith("of_")]
        self.asks = tuple(name.removeprefix("of_") for name in asked_of if self.has_slopes)
        self.told = (*asked_of, "slopes") if self.has_slopes else ()
        self.has_link = any(each.name == "link" for each in self.arguments)
        self.cotangents = tuple(tuple(each.name.split("+")) for each in self.answers)
        learnable = {name for back in self.back for names in back.cotangents for name in names}
        self.learned_arrays = tuple(name for name in self.arrays if name in learnable)
        ways = self.back if self.onward is None else (*self.back, self.onward)
        wanted = {argument.name for back in ways for argument in back.arguments}
        self.kept = tuple(i for i, each in enumerate(self.answers) if each.name in wanted)
        self.names_kept = tuple(self.answers[place].name for place in self.kept)
        direct = [("cotangent", *self.names_kept)]
        self.is_direct = [back.own for back in self.back] == direct
