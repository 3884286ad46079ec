"""Models that generate, and idle engines."""
