"""What the pictures of studies share: panels with lines, and one legend for all of them."""

from collections.abc import Iterable
from typing import Any

from kofn.commands.results import picture


def panels(width: float, height: float, rows: int = 1, columns: int = 1, **more: Any) -> Any:
    """Return a picture and its panels, in rows."""
    return picture(width, height, rows, columns, squeeze=False, **{"dpi": 140, **more})


def plain(panel: Any, title: str, size: float | str = "large", grid: bool = True) -> None:
    """Give a panel a title, lines to read values from, and no frame."""
    panel.set_title(title, loc="left", fontsize=size)
    if grid:
        panel.grid(axis="y", color="#e6e6e6")
    panel.spines[["top", "right"]].set_visible(False)


def line(panel: Any, x: Any, y: Any, **how: Any) -> None:
    """Draw a line; a single point is drawn as a marker."""
    panel.plot(x, y, marker="o" if len(x) == 1 else None, **how)


def image(panel: Any, values: Any, **how: Any) -> None:
    """Draw an image without ticks; values from 0 to 1."""
    panel.imshow(values.numpy(), vmin=0, vmax=1, **how)
    panel.set(xticks=[], yticks=[])


def legend(figure: Any, order: Iterable[str] = (), **more: Any) -> None:
    """Explain each label once, whichever panels have it: in this order, or as they were drawn."""
    found: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    labels = [label for label in order or found if label in found]
    handles = [found[label] for label in labels]
    if labels:
        figure.legend(handles, labels, loc="outside right center", frameon=False, **more)
