"""What is measured: the server that answers at a URL, its protocols and its models."""
