"""A kernel for the Kernel Hub of Hugging Face, made of kofn's own files: `python -m wheels.hub`."""
