"""Tests of conch.fleet."""
