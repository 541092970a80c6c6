"""`python -m studies.choice`."""

from studies.frame.command import main

main("choice")
