"""`python -m kofn` is the command `kofn`."""

from kofn.commands.app import main

main()
