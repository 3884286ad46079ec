"""Remote repositories with real peers: an S3 server, a registry, faulty servers."""
