"""The process of a Python model: message loop, Triton's Python API, BLS."""
