"""The rules of `conch check`, one module for each family."""
