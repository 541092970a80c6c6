"""The rows of the built-in links, of which each page takes what it tells.

`python docs/table_of_links.py` prints the tables; with `--write` the README, links.md and
mathematics.md take them. `table_of_properties.py` and `make_links_figure.py` read the rows, too.
"""

from __future__ import annotations

from typing import NamedTuple

from written import Part, show

COMMAND = "python docs/table_of_links.py --write"


class Row(NamedTuple):
    """What the pages tell of a link; a test compares with the link what can be measured."""

    formula: str  # F(z)
    inside: str  # where F(z) is neither 0 nor 1
    tex: str  # F(z) again
    omega: str
    slope: str  # the largest F'
    weights: str
    when: str  # one would use it
    short: str  # the same in a few words
    label: tuple[float, tuple[float, float], str]  # in the figure: z of the point, place, alignment
    at_one: str = ""  # the map of one that it is at k = 1
    published: str = ""
    family: str = ""  # the parameter of the links that it is one of


ROWS = {
    "logistic": Row(
        formula="1/(1 + e⁻ᶻ)",
        inside="all z",
        tex="$1/(1 + e^{-z})$",
        omega=r"$q \log q + (1 - q) \log(1 - q)$",
        slope="1/4",
        weights="strictly between 0 and 1",
        when="the default: smooth, a gradient for every score",
        short="a gradient for every score",
        label=(1.2, (1.6, 0.6), "left"),
        published="LML; entropic optimal transport",
    ),
    "laplace": Row(
        formula="½eᶻ below 0, 1 − ½e⁻ᶻ above",
        inside="all z",
        tex="$e^z/2$ below 0, $1 - e^{-z}/2$ above",
        omega=r"$q(\log 2q - 1)$ for $q \le 1/2$, then the same of $1 - q$",
        slope="1/2",
        weights="strictly between 0 and 1",
        when="as logistic, but steeper at the threshold",
        short="the same, steeper at the threshold",
        label=(1.55, (2.2, 0.74), "left"),
        at_one="softmax, while no weight exceeds ½",
        published="LapSum",
    ),
    "normal": Row(
        formula="Φ(z)",
        inside="all z",
        tex=r"$\Phi(z)$",
        omega=r"$-\varphi(\Phi^{-1}(q))$",
        slope="1/√(2π)",
        weights="strictly between 0 and 1; the tails fall fastest",
        when="when scores far from the threshold should hardly matter",
        short="weights that harden fast",
        label=(1.75, (2.05, 1.1), "center"),
    ),
    "exponential": Row(
        formula="min(1, eᶻ⁻¹)",
        inside="z < 1",
        tex=r"$\min(1, e^{z - 1})$",
        omega=r"$q \log q$",
        slope="1",
        weights="above 0; exactly 1 from θ + T on",
        when="to extend softmax to k > 1",
        short="softmax for k entries; losses of k labels",
        label=(0.3, (0.75, 0.4), "left"),
        at_one="softmax",
    ),
    "linear": Row(
        formula="z + ½, cut to [0, 1]",
        inside="−½ < z < ½",
        tex="$z + 1/2$, cut to $[0, 1]$",
        omega="$(q^2 - q)/2$",
        slope="1",
        weights="exactly 0 and 1 outside θ ± T/2",
        when="for sparse weights; piecewise linear",
        short="weights of exactly 0 and 1; projections",
        label=(0.5, (0.2, 1.1), "right"),
        at_one="sparsemax",
        published="projection to the capped simplex",
    ),
    "entmax": Row(
        formula="[1 + (α−1)(z − 1/α)]₊^{1/(α−1)}, at most 1",
        inside="1/α − 1/(α−1) < z < 1/α",
        tex=r"$[1 + (\alpha - 1)(z - 1/\alpha)]_+^{1/(\alpha - 1)}$, at most $1$",
        omega=r"$(q^\alpha - q)/(\alpha(\alpha - 1))$",
        slope="1",
        weights="exactly 0 and 1, smooth at 0",
        when="between the last two; alpha ≥ 1, and it may be learned",
        short="exact zeros, smoother than linear",
        label=(2 / 3, (0.85, 1.1), "center"),
        at_one="entmax",
        published="budget entmax",
        family="alpha",
    ),
}
"""In the order of the links' numbers."""


def called(name: str, row: Row) -> str:
    """Return what `link=` takes."""
    return f'`"{name}"`' + f", `links.{name}({row.family})`" * bool(row.family)


def of_uses() -> str:
    lines = [
        f"| {called(name, row)} | {row.weights} | {row.at_one} | {row.when} |"
        for name, row in ROWS.items()
    ]
    head = "| `link=` | Weights | At k = 1 | When to use it |", "| --- | --- | --- | --- |"
    return "\n".join([*head, *lines])


def of_formulas() -> str:
    lines = [
        f"| {called(name, row)} | {row.formula} | {row.inside} | {row.at_one} | {row.published} |"
        for name, row in ROWS.items()
    ]
    head = (
        "| `link=` | F(z) | 0 < F(z) < 1 for | At k = 1 | Published as |",
        "| --- | --- | --- | --- | --- |",
    )
    return "\n".join([*head, *lines])


def of_parameter(family: str) -> str:
    return rf"($\{family}$)" if family else ""


def of_entropies() -> str:
    lines = [
        f"| {name}{of_parameter(row.family)} | {row.tex} | {row.omega} |"
        for name, row in ROWS.items()
    ]
    return "\n".join(["| link | $F(z)$ | $\\Omega(q)$ |", "| --- | --- | --- |", *lines])


PARTS = {
    Part("README.md", "links", COMMAND): of_uses,
    Part("docs/links.md", "links", COMMAND): of_formulas,
    Part("docs/mathematics.md", "links", COMMAND): of_entropies,
}

if __name__ == "__main__":
    show({part: table() for part, table in PARTS.items()})
