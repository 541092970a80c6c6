"""What makes of a declared operation that which a framework calls, and finds θ: a folder each."""
