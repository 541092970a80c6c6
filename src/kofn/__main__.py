"""Run the command `kofn` by `python -m kofn`."""

from kofn.commands.app import main

main()
