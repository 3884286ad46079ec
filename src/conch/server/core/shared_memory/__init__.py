"""Regions of clients' shared memory, and copies into and out of them."""
