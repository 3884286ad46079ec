"""A simulation of models under load that runs the server's own scheduling decisions, fed from its event log."""
