"""Clients of a running server: `conch chat` and `conch client`."""
