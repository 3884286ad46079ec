"""Traces of requests, and where they are written."""
