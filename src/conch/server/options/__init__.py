"""The server's options: flags, environment variables, checks."""
