"""The model's side of the python backend; see the package above it."""
