"""Small models, trained by several methods and compared; `python -m studies` lists them."""

import sys

from kofn.commands.needed import missing

_found = missing()
if _found is not None:
    # A command that cannot run says why in one line; a traceback would hide it.
    print(f"kofn: {_found[1]}", file=sys.stderr)
    raise SystemExit(2)
