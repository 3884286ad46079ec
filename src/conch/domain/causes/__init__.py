"""Causes of a request's time, from the tables of the event log. Pure."""
