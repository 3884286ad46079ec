"""Checks of models: configurations, ensembles, versions, and model files without their frameworks."""
