"""Ensembles: contract between steps, data flow, execution."""
