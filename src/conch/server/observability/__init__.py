"""The log, metrics and traces. Other layers push to this one; it does not import them."""
