"""The event log of the scheduler: what its rows hold, and the form in which it leaves the server."""
