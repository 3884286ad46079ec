"""Loading, reloading and unloading models."""
