"""`conch bench`: measure a server."""
