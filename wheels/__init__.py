"""What makes wheels: the library of compiled kernels for each platform, and where it is tried."""
