"""The sub-commands of `conch engine`."""
