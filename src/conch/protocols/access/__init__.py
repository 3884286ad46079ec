"""Who may call what: API keys, restricted groups of endpoints, the check that uses both."""
