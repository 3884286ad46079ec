"""What a fleet did: journal, plot, verdict, files."""
