"""Run the command `kofn` by `python -m kofn`."""

from kofn.commands.entry import main

if __name__ == "__main__":
    main()
