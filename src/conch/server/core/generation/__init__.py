"""Generative models and idle engines."""
