"""The page's tables of messages are what their command counts now."""

from __future__ import annotations

import table_of_messages as script

from places import ROOT, as_program


def test_the_page_has_what_is_counted() -> None:
    run = as_program(str(ROOT / script.COMMAND.split()[1]))
    assert run.stdout == f"{script.LINKS.text}\n\n{script.OTHERS.text}\n", run.stderr
