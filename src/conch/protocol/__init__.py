"""Bytes and messages to values and back; no input or output."""
