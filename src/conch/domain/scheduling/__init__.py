"""Scheduling decisions without clock and I/O, which the server and its simulation share."""
