"""gRPC of the load generator: HTTP/2 as a client, and the messages of gRPC on it."""
