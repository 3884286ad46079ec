"""The contract of generative backends, and the server's side of engine processes."""
