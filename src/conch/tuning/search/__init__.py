"""Searches of a space as state machines: they propose points and are told scores. No I/O, no clock."""
