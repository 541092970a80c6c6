"""The work behind `kofn bench`: what is timed, how, and what is said of it."""
