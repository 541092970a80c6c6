"""`python -m studies.vae`."""

from studies.frame.command import main

main("vae")
