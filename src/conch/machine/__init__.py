"""What this process may use of its machine, within the limits of its container."""
