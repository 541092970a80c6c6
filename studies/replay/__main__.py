"""`python -m studies.replay`."""

from studies.frame.command import main

main("replay")
