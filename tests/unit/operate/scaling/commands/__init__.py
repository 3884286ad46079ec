"""Tests of conch autoscale."""
