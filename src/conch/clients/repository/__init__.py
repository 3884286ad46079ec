"""`conch repo` and its sub-commands."""
