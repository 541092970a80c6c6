"""`python -m studies.router`."""

from studies.frame.command import main

main("router")
