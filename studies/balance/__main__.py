"""`python -m studies.balance`."""

from studies.frame.command import main

main("balance")
