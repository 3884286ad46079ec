"""Counters of models, which the request path only adds to."""
