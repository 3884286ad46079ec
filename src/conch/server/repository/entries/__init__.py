"""Models that lie outside of a repository: which files belong to one, and its entry in a repository."""
