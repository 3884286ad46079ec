"""Incidents: what makes one, and the bundle of files that describes it."""
