"""Tests of conch.operate.fleet."""
