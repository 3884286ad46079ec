"""The sub-commands of `conch repo`."""
