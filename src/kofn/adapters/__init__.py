"""The way from a declared operation to a framework's calls, and the search for θ: a folder each."""
