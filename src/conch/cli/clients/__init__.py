"""Clients of a running server for `conch chat` and `conch client`."""
