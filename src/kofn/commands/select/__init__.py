"""`kofn select`: choose columns of a table."""
