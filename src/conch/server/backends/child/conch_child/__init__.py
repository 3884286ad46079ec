"""Code of child processes: standard library and numpy only."""
