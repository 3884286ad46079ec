"""Tests of conch.scaling."""
