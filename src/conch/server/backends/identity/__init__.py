"""A backend that returns its inputs, for tests and for trying clients."""
