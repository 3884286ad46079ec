"""Chooses configurations: by trials on a running server (tune), and by rules and facts (advise)."""
