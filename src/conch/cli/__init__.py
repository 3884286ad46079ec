"""The sub-commands of `conch`."""
