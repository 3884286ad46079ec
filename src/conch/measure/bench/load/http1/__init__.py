"""HTTP/1.1 of the load generator."""
