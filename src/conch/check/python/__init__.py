"""Checks of Python models, from their syntax trees."""
