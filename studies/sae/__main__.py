"""`python -m studies.sae`."""

from studies.frame.command import main

main("sae")
