"""What a run of the tuner keeps on disk: the state to restore, the trials, what was applied."""
