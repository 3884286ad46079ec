"""Processes: signals to stop, the end with the parent, and local servers."""
