"""Frontend processes: acceptors beside the core, which decode and encode, and the link between them and the core."""
