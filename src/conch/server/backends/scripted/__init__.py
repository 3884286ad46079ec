"""An engine with scripted output, for tests and for trying clients."""
