"""The work behind `kofn compare` and `kofn apply`: read scores, put them through maps, report."""
