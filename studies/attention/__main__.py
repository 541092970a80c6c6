"""`python -m studies.attention`."""

from studies.frame.command import main

main("attention")
