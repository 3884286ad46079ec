"""`conch run`: serve a model with one command, and manage what runs."""
