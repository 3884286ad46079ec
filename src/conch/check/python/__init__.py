"""Checks of Python models by their syntax trees."""
