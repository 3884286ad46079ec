"""Tests of conch.server.repository.remote without a peer."""
