"""What is shown while a benchmark runs."""
