"""Small models, trained by several methods and compared; `python -m studies` lists them."""

import os
import signal
import sys


def _end(number: int, _: object) -> None:
    """End this process with a line, as kofn does once it is imported."""
    what = "terminated" if number == signal.SIGTERM else "interrupted"
    os.write(2, f"kofn: {what}; nothing was written\n".encode())
    os._exit(128 + number)


if sys.argv[:1] == ["-m"]:
    for each in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, _end)

from kofn.commands.needed import end_if_missing  # noqa: E402

end_if_missing()
