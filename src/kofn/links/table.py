"""The table of built-in links, which `links/__init__.py` imports, and their lookup by name."""

from __future__ import annotations

from kofn.links.link import BuiltIn, Link, built_in

TABLE = {link.name: link for link in built_in()}
"""The links that have a name; "entmax" means entmax(1.5)."""

OTHERS = {other: link.name for link in built_in() for other in link.inner.other_names}
"""What others call the links, or the maps that they are at k = 1."""


def resolve(link: str | Link) -> Link:
    """Return the link given by name or as an object."""
    if isinstance(link, Link):
        return link
    if isinstance(link, str) and link in TABLE:
        return TABLE[link]
    names = ", ".join(repr(name) for name in TABLE)
    error = ValueError if isinstance(link, str) else TypeError
    name = link if isinstance(link, str) else getattr(link, "__name__", "")
    own = name if name in TABLE else OTHERS.get(name.lower())
    hint = (
        ""
        if own is None
        else f"; you may mean {own!r}" + " or links.entmax(alpha)" * (own == "entmax")
    )
    raise error(f"link must be a kofn.Link or one of {names}; got {link!r}{hint}")


def kinks_of(link: Link) -> tuple[tuple[float, float], ...] | None:
    """Return (z, F(z)) at the kinks and jumps of a built-in link's density, its ends included.

    z is the inner link's, and α is a number. The result is None for a user's link.
    """
    inner = link.inner
    return inner.kinks if isinstance(inner, BuiltIn) else None
