"""The k largest scores of a row, without sorting it."""
