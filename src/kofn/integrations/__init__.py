"""kofn in other libraries, one folder or file per library; each is imported by its name."""
