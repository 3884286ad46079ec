"""The command line programs of the clients."""
