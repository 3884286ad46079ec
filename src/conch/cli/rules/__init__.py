"""Rules and alerts: `conch rules` and `conch drill`."""
