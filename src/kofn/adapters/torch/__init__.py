"""What PyTorch makes of a declaration, and how it finds θ."""
