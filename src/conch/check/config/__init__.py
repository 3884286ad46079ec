"""Checks of config.pbtxt and ensembles."""
