"""`python -m studies.prune`."""

from studies.frame.command import main

main("prune")
