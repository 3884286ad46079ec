"""Triton's Python API: the classes of `triton_python_backend_utils`."""
