"""Archives from untrusted places, read with bounded memory and disk."""
