"""`python -m kofn` is the command `kofn`."""

from kofn.cli import main

main()
