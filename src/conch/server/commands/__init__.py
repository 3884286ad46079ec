"""A server's process and its flags: `conch serve` and `conch health`."""
