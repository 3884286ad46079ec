"""One limit, and its forms in files and annotations."""
