"""What makes of a declared operation that which a framework calls: one file per framework."""
