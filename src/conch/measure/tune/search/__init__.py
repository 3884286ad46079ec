"""Searches of a space as state machines: they propose points and receive scores. No I/O, no clock."""
