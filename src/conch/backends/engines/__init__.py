"""The contract of backends that generate, and the server's side of engines in processes."""
