"""What all studies share: command line, training, checkpoints, and what is written of results."""
