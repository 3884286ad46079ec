"""Sockets and sessions: unwrap, call the core, wrap."""
