"""Read untrusted archives with bounded memory and disk space."""
