"""Clients that measure any server: benchmarks, tuning, advice."""
