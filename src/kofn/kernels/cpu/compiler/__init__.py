"""From Python to native code, by Numba and LLVM: where there is no library, and to make it."""
