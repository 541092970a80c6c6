"""What the other rooms need of PyTorch alone; nothing here is imported before PyTorch is."""
