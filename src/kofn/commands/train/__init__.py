"""`kofn train`: studies of small models, each in a folder of its own."""
