"""Ensembles: checks between steps, data flow, execution."""
