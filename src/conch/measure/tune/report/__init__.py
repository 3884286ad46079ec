"""What a run found, for terminals, browsers and programs."""
