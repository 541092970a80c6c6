"""Rows whose entries lie in several processes: what `kofn.distributed` is made of."""
