"""A place with files becomes model configurations."""
