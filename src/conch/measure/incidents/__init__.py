"""Incident bundles as files: `conch record` fetches them, `conch replay` runs what they hold again."""
