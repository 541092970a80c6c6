"""kofn's docstrings as Griffe and Markdown read them."""

from __future__ import annotations

import re

from griffe import Extension, Object


class Readable(Extension):
    """Name the section of an example as Griffe does, and keep "> 0" from being a quotation."""

    def on_object(self, *, obj: Object, **_) -> None:
        """Change one docstring."""
        if obj.docstring:
            text = re.sub(
                r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
            text = re.sub(r"^( *[\w, ]+: )>", r"\1\>", text, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"^( *)>(?!>>)", r"\1\>", text, flags=re.MULTILINE)
