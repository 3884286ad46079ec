"""An engine with scripted output."""
