"""Checks of config.pbtxt, ensembles and labels."""
