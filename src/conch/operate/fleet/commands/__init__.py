"""`conch fleet`."""
