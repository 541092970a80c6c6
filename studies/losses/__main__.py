"""`python -m studies.losses`."""

from studies.frame.command import main

main("losses")
