"""Tests of conch.repository.remote without a peer."""
