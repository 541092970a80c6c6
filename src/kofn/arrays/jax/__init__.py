"""What the other rooms need of JAX alone; nothing here is imported before JAX is."""
