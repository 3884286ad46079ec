"""Model configurations: reading, defaults, validation."""
