"""What kofn does on a GPU: the public functions, their launches, and everything `make gpu` runs."""
