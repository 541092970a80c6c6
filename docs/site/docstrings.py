"""kofn's docstrings and signatures as Griffe and Markdown read them."""

from __future__ import annotations

import re

from griffe import Extension, Object

NOBODY = "Never"
"""The type of a parameter that takes nothing, which the reference leaves out."""


class Readable(Extension):
    """Name the section of an example as Griffe does, and keep "> 0" from being a quotation."""

    def on_object(self, *, obj: Object, **_) -> None:
        """Change one docstring, and the signature of a function."""
        if obj.is_function:
            for function in (obj, *(obj.overloads or ())):
                for each in [
                    each for each in function.parameters if str(each.annotation) == NOBODY
                ]:
                    del function.parameters[each.name]
        if obj.docstring:
            text = re.sub(
                r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
            text = re.sub(r"^( *[\w, ]+: )>", r"\1\>", text, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"^( *)>(?!>>)", r"\1\>", text, flags=re.MULTILINE)
