"""Load, reload, unload and poll models."""
