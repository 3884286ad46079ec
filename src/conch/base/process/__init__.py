"""Processes: signals to stop, and the ports of children."""
