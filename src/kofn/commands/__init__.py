"""The command `kofn`."""
