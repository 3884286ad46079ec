"""Repositories that are not on this machine, with real peers: an S3 server, a registry, servers that misbehave."""
