"""`conch why`: why a request, or the slowest requests, took their time, from a server's event log."""
