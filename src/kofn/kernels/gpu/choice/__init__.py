"""Hard choices of rows in a GPU's memory."""
