"""HTTP: the client of simple requests, what it asks Prometheus and pages of metrics, and keys."""
