"""Checks of model files, without their frameworks."""
