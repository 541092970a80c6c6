"""The work behind `kofn select`: read a table, compare ways to choose, report."""
