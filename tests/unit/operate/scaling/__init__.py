"""Tests of conch.operate.scaling."""
