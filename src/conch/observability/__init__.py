"""What is known about the server's work. This layer is told; it never asks."""
