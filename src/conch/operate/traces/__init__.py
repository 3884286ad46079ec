"""Readers of recorded traces, and their rendering as waterfalls. Knows files and formats, not the server."""
