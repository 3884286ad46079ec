"""Messages of the KServe v2 protocol in JSON."""
